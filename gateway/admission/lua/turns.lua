-- Turns: where a refused ask stands in line.  It was told when to come back; until then, and for a
-- while after, nobody who comes later gets in before it.  A turn is on the limit that refused, and
-- known by what was asked: an ask that comes again too early is told the rest of the same wait.
--
-- Who is in line gets a part of what flows in, and who comes anew the rest.  Were it all theirs, who
-- comes anew would have to wait in any case, and be refused first: two attempts for each admission.
-- What has been saved for those in line by now, nobody else gets: what they were told stays true.
--
-- TURNS holds them by when they are due; LINE what each wants, and by limit what all of them want and
-- when the last of them is due.
local TURN_GRACE_MS = 2000 -- a client that counts in whole seconds comes up to one second late
local MAX_TURN_MS = 60000 -- no more than a minute's refill is promised to those who may not come
local TURNS_TTL_MS = 2 * MAX_TURN_MS + TURN_GRACE_MS
local MAX_JITTER_MS = 30000
local LINE_RATIO = 0.4 -- of what flows in; attempts for each admission are 1 + this, at the most
local SHORT_LINE_MS = 1000 -- a line up to here gets all of it: clients wait a second at least

local function line()

local function line_of(name, limit)
  return '#' .. limit .. name
end

local function last_of(name, limit)
  return '@' .. limit .. name
end

local function drop_turn(turn)
  local packed = redis.call('HGET', LINE, turn)
  if packed then
    local wanted = cmsgpack.unpack(packed)
    redis.call('HINCRBY', LINE, line_of(wanted[1], wanted[2]), -wanted[3])
    redis.call('HDEL', LINE, turn)
  end
  redis.call('ZREM', TURNS, turn)
end

local function drop_lapsed_turns()
  local before_ms = NOW_MS - TURN_GRACE_MS
  for _, turn in ipairs(redis.call('ZRANGEBYSCORE', TURNS, '-inf', before_ms, 'LIMIT', 0, MAX_SWEPT)) do
    drop_turn(turn)
  end
end

local function turn_of(turn)
  local packed = redis.call('HGET', LINE, turn)
  if not packed then
    return nil
  end
  local wanted = cmsgpack.unpack(packed)
  return {name = wanted[1], limit = wanted[2], cost = wanted[3], due_ms = wanted[4]}
end

local function take_turn(turn, name, limit, cost, wait_ms, told_ms)
  local due_ms, last = NOW_MS + told_ms, last_of(name, limit)
  redis.call('HSET', BUCKET, 'turns_until_ms', NOW_MS + TURNS_TTL_MS)
  redis.call('ZADD', TURNS, due_ms, turn)
  redis.call('HSET', LINE, turn, cmsgpack.pack({name, limit, cost, due_ms}))
  local is_first = redis.call('HINCRBY', LINE, line_of(name, limit), cost) == cost
  local before_ms = is_first and 0 or tonumber(redis.call('HGET', LINE, last)) or 0
  redis.call('HSET', LINE, last, math.max(before_ms, NOW_MS + wait_ms))
  redis.call('PEXPIRE', TURNS, TURNS_TTL_MS)
  redis.call('PEXPIRE', LINE, TURNS_TTL_MS)
end

-- What of the level is free for an ask, and in how many ms its turn would come.  The rate is what
-- flows in a ms; costs in line are counted in units.
local function place(mine, name, limit, level, cost, rate, unit)
  local is_mine = mine and mine.name == name and mine.limit == limit
  if is_mine and mine.due_ms <= NOW_MS then
    return level, (cost - level) / rate
  end
  local f = redis.call('HMGET', LINE, line_of(name, limit), last_of(name, limit))
  local wanted, last_ms = (tonumber(f[1]) or 0) * unit, math.max(0, (tonumber(f[2]) or 0) - NOW_MS)
  if is_mine then
    return level - wanted + mine.cost * unit, mine.due_ms - NOW_MS
  end
  local needs_ms = (wanted + cost - level) / rate
  if wanted > 0 then
    local ratio = last_ms < SHORT_LINE_MS and 1 or LINE_RATIO
    local behind_ms = last_ms + cost / (rate * ratio)
    needs_ms = math.max(needs_ms, math.min(behind_ms, MAX_TURN_MS)) -- beyond it nothing is promised
  end
  return level - math.max(0, wanted - last_ms * rate * LINE_RATIO), needs_ms
end

-- Longer by up to a twentieth: those refused together shall not come back together.  A minute stays
-- a minute: OpenAI's clients do not wait for longer.
local function jittered(wait_ms)
  local most_ms = math.min(MAX_JITTER_MS, wait_ms / 20)
  if wait_ms <= MAX_TURN_MS then
    most_ms = math.min(most_ms, MAX_TURN_MS - wait_ms)
  end
  return wait_ms + math.floor(most_ms * (time[2] % 1000) / 1000)
end

return drop_turn, drop_lapsed_turns, turn_of, take_turn, place, jittered
end

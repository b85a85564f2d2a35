-- Calendar months, counted from year 0: month_of(day), first_day_of(month)
-- (days_from_civil: https://howardhinnant.github.io/date_algorithms.html)

local function calendar()

local function month_of(day)
  local shifted = day + 719468
  local era = math.floor(shifted / 146097)
  local doe = shifted - era * 146097
  local yoe = math.floor(
    (doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local month = math.floor((5 * doy + 2) / 153) + 2 -- 2: March
  return (yoe + era * 400) * 12 + month
end

local function first_day_of(month)
  local march_based = month - 2
  local year = math.floor(march_based / 12)
  local era = math.floor(year / 400)
  local yoe = year - era * 400
  local doy = math.floor((153 * (march_based - year * 12) + 2) / 5)
  return era * 146097 + yoe * 365 + math.floor(yoe / 4) - math.floor(yoe / 100) + doy - 719468
end

return month_of, first_day_of
end

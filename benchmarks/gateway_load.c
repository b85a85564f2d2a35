// Load over HTTP/1.1 keep-alive connections from one thread, measured where it is sent.
//
//   gateway_load PORT REQUEST_FILE CONNECTIONS SECONDS [RATE]
//
// RATE 0 (or none): each connection sends as soon as its answer has ended.  Otherwise requests are
// due at that constant rate, and a latency counts from when its request was due, not from when a
// free connection was found.  The first fifth of the time is not counted.  Prints one JSON object;
// events are told by "@<microseconds of CLOCK_MONOTONIC>", which the upstream puts into each.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct samples {
  float *values;
  size_t count, capacity;
};

struct connection {
  int fd, is_busy, status, is_chunked, in_body, has_bytes;
  long left;              // of a body with a length
  char head[8192];        // of the answer, then the last bytes of a chunked body
  int length;
  uint64_t due_us, digits;
  int num_digits;         // -1: not inside "@<digits>"
};

static struct samples latencies, first_bytes, delays;
static uint64_t begin_us, count_from_us, end_us;
static long num_sent, num_ok, num_failed, num_events;
static char *request;
static size_t request_size;
static int poller, port;
static double rate;

static uint64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

static void add(struct samples *s, uint64_t now, double value) {
  if (now < count_from_us || now > end_us) return;
  if (s->count == s->capacity) {
    s->capacity = s->capacity ? s->capacity * 2 : 65536;
    s->values = realloc(s->values, s->capacity * sizeof(float));
  }
  s->values[s->count++] = value;
}

static int ascending(const void *a, const void *b) {
  float x = *(float *)a, y = *(float *)b;
  return x < y ? -1 : x > y;
}

static double quantile(struct samples *s, double q) {
  return s->count ? s->values[(size_t)(q * (s->count - 1) + 0.5)] : -1;
}

static void dial(struct connection *c) {
  int one = 1;
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_port = htons(port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  c->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(c->fd, (void *)&address, sizeof address)) perror("connect"), exit(1);
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
  epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
}

static void begin(struct connection *c, uint64_t due_us) {
  int fd = c->fd;
  memset(c, 0, sizeof *c);
  c->fd = fd, c->is_busy = 1, c->due_us = due_us, c->num_digits = -1, c->left = -1;
  num_sent++;
  send(fd, request, request_size, MSG_NOSIGNAL);
}

static void finish(struct connection *c) {
  uint64_t now = now_us();
  c->is_busy = 0;
  if (c->status != 200) {
    if (num_failed++ == 0) fprintf(stderr, "%.*s\n", 200, c->head);
  } else if (now >= count_from_us && now <= end_us) {
    num_ok++;
    add(&latencies, now, now - c->due_us);
  }
  if (rate == 0 && now < end_us) begin(c, now);
}

static void scan_events(struct connection *c, const char *data, ssize_t size) {
  uint64_t now = now_us();
  for (ssize_t i = 0; i < size; i++) {
    if (data[i] == '@') {
      c->num_digits = 0, c->digits = 0;
    } else if (c->num_digits >= 0) {
      if (data[i] >= '0' && data[i] <= '9') {
        c->digits = c->digits * 10 + (data[i] - '0'), c->num_digits++;
      } else {
        if (c->num_digits > 5) num_events++, add(&delays, now, (double)now - c->digits);
        c->num_digits = -1;
      }
    }
  }
}

static void on_body(struct connection *c, const char *data, ssize_t size) {
  uint64_t now = now_us();
  if (size > 0 && !c->has_bytes) c->has_bytes = 1, add(&first_bytes, now, now - c->due_us);
  if (!c->is_chunked) {
    c->left -= size;
    if (c->left <= 0) finish(c);
    return;
  }
  scan_events(c, data, size);
  // The end is the last chunk's: no event holds these five bytes.
  int keep = size < 8 ? size : 8;
  if (c->length + keep > 16) memmove(c->head, c->head + c->length - 8, 8), c->length = 8;
  memcpy(c->head + c->length, data + size - keep, keep);
  c->length += keep;
  if (c->length >= 7 && !memcmp(c->head + c->length - 7, "\r\n0\r\n\r\n", 7)) finish(c);
}

static void on_head(struct connection *c, const char *data, ssize_t size) {
  ssize_t room = sizeof c->head - 1 - c->length, old = c->length;
  ssize_t taken = size < room ? size : room;
  memcpy(c->head + old, data, taken);
  c->length += taken;
  c->head[c->length] = 0;
  char *end = strstr(c->head, "\r\n\r\n");
  if (!end) return;
  c->status = atoi(c->head + 9);
  char *field = strcasestr(c->head, "\r\ncontent-length:");
  if (field && field < end) c->left = atol(field + 17);
  c->is_chunked = c->left < 0;
  c->in_body = 1;
  ssize_t used = end + 4 - c->head - old;
  if (c->status == 200) c->length = 0;
  on_body(c, data + used, size - used);
}

static void on_readable(struct connection *c) {
  static char data[1 << 18];
  ssize_t n = recv(c->fd, data, sizeof data, MSG_DONTWAIT);
  if (n <= 0) {
    if (c->is_busy) num_failed++;
    c->is_busy = 0;
    close(c->fd);
    dial(c);
    if (rate == 0 && now_us() < end_us) begin(c, now_us());
  } else if (c->is_busy) {
    c->in_body ? on_body(c, data, n) : on_head(c, data, n);
  }
}

static void send_due(struct connection *all, int count) {
  static double next_due_us;
  static int cursor;
  if (next_due_us == 0) next_due_us = begin_us;
  while (next_due_us <= now_us() && next_due_us < end_us) {
    int tried = 0;
    while (tried++ < count && all[cursor].is_busy) cursor = (cursor + 1) % count;
    if (all[cursor].is_busy) return;  // stays due, and its latency grows
    begin(&all[cursor], (uint64_t)next_due_us);
    next_due_us += 1e6 / rate;
  }
}

static void print_samples(const char *name, struct samples *s) {
  qsort(s->values, s->count, sizeof(float), ascending);
  printf(", \"%s\": {\"p50\": %.0f, \"p99\": %.0f, \"max\": %.0f}", name, quantile(s, 0.5),
         quantile(s, 0.99), quantile(s, 1));
}

int main(int argc, char **argv) {
  port = atoi(argv[1]);
  FILE *file = fopen(argv[2], "rb");
  int count = atoi(argv[3]);
  double seconds = atof(argv[4]);
  rate = argc > 5 ? atof(argv[5]) : 0;
  request = malloc(1 << 22);
  request_size = fread(request, 1, 1 << 22, file);
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_TIMERSLACK, 1000);
  struct rlimit limit = {20000, 20000};
  setrlimit(RLIMIT_NOFILE, &limit);
  poller = epoll_create1(0);
  struct connection *all = calloc(count, sizeof *all);
  for (int i = 0; i < count; i++) dial(&all[i]);
  begin_us = now_us();
  count_from_us = begin_us + seconds * 2e5;
  end_us = begin_us + seconds * 1e6;
  if (rate == 0)
    for (int i = 0; i < count; i++) begin(&all[i], now_us());
  for (;;) {
    int num_busy = 0;
    if (rate > 0) send_due(all, count);
    uint64_t now = now_us();
    if (now >= end_us)
      for (int i = 0; i < count; i++) num_busy += all[i].is_busy;
    if (now >= end_us && (!num_busy || now > end_us + 5000000)) break;
    struct epoll_event events[512];
    struct timespec wait = {0, rate > 0 && now < end_us ? 100000 : 20000000};
    int n = epoll_pwait2(poller, events, 512, &wait, NULL);
    for (int i = 0; i < n; i++) on_readable(events[i].data.ptr);
  }
  printf("{\"num_sent\": %ld, \"num_ok\": %ld, \"num_failed\": %ld, \"requests_per_s\": %.1f, "
         "\"num_events\": %ld",
         num_sent, num_ok, num_failed, num_ok / (seconds * 0.8), num_events);
  print_samples("latency_us", &latencies);
  print_samples("first_byte_us", &first_bytes);
  print_samples("event_delay_us", &delays);
  printf("}\n");
  return 0;
}

// An OpenAI-compatible upstream that costs next to nothing: one thread, epoll.
//
//   gateway_upstream FIRST_PORT NUM_PORTS [NUM_CHUNKS PACE_US]
//
// A POST whose body holds "stream":true (or with a space) gets NUM_CHUNKS events, one every PACE_US
// (0: all in one write), then its usage and [DONE]; any other POST one document with its usage.
// GET /v1/models lists the model "mock"; any other GET is answered {}.
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

enum { MAX_BODY = 1 << 20, MAX_FDS = 20000 };

struct connection {
  int is_listener, length, chunks_left;
  uint64_t due_us;
  char *input;
};

static struct connection connections[MAX_FDS];
static int poller, num_chunks = 50, pace_us = 0, highest_fd = 0, num_streaming = 0;

static const char USAGE[] =
    "\"usage\":{\"prompt_tokens\":200,\"completion_tokens\":50,\"total_tokens\":250}";

static uint64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

static void put(int fd, const char *data, size_t size) {
  while (size) {
    ssize_t n = send(fd, data, size, MSG_NOSIGNAL);  // blocking sockets: no output buffer to keep
    if (n <= 0) return;
    data += n, size -= n;
  }
}

static void put_document(int fd, const char *body) {
  char out[2048];
  int n = snprintf(out, sizeof out,
                   "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                   "content-length: %zu\r\n\r\n%s",
                   strlen(body), body);
  put(fd, out, n);
}

static int add_event(char *out, const char *json) {
  size_t size = strlen(json) + 8;  // "data: " and two line ends
  return sprintf(out, "%zx\r\ndata: %s\n\n\r\n", size, json);
}

static int add_word(char *out) {
  char json[256];
  snprintf(json, sizeof json,
           "{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"mock\","
           "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"@%llu\"},\"finish_reason\":null}]}",
           (unsigned long long)now_us());
  return add_event(out, json);
}

static int add_end(char *out) {
  char json[512];
  snprintf(json, sizeof json,
           "{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"mock\","
           "\"choices\":[],%s}",
           USAGE);
  int n = add_event(out, json);
  n += add_event(out + n, "[DONE]");
  return n + sprintf(out + n, "0\r\n\r\n");
}

static void begin_stream(int fd) {
  static char out[1 << 20];
  struct connection *c = &connections[fd];
  int n = sprintf(out, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                       "transfer-encoding: chunked\r\n\r\n");
  if (pace_us == 0) {
    for (int i = 0; i < num_chunks; i++) n += add_word(out + n);
    n += add_end(out + n);
  } else {
    n += add_word(out + n);
    c->chunks_left = num_chunks - 1;
    c->due_us = now_us() + pace_us;
    num_streaming++;
  }
  put(fd, out, n);
}

static void answer(int fd, int is_post, const char *path, const char *body) {
  char document[1024];
  if (!is_post) {
    put_document(fd, strncmp(path, "/v1/models", 10) ? "{}" : "{\"data\":[{\"id\":\"mock\"}]}");
  } else if (strstr(body, "\"stream\":true") || strstr(body, "\"stream\": true")) {
    begin_stream(fd);
  } else {
    snprintf(document, sizeof document,
             "{\"id\":\"c\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"mock\","
             "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
             "\"The disk of the second node filled up at noon, so its writes began to wait.\"},"
             "\"finish_reason\":\"stop\"}],%s}",
             USAGE);
    put_document(fd, document);
  }
}

static void drop(int fd) {
  struct connection *c = &connections[fd];
  if (c->chunks_left) num_streaming--;
  free(c->input);
  memset(c, 0, sizeof *c);
  close(fd);
}

// One request at a time: a gateway does not pipeline.
static void on_readable(int fd) {
  struct connection *c = &connections[fd];
  ssize_t n = recv(fd, c->input + c->length, MAX_BODY - c->length, MSG_DONTWAIT);
  if (n <= 0) {
    drop(fd);
    return;
  }
  c->length += n;
  c->input[c->length] = 0;
  char *end = strstr(c->input, "\r\n\r\n");
  if (!end) return;
  char *field = strcasestr(c->input, "\r\ncontent-length:");
  long size = field && field < end ? atol(field + 17) : 0;
  if (c->input + c->length < end + 4 + size) return;
  c->length = 0;
  answer(fd, c->input[0] == 'P', strchr(c->input, ' ') + 1, end + 4);
}

static void on_connection(int listener) {
  int one = 1, fd = accept(listener, NULL, NULL);
  if (fd < 0 || fd >= MAX_FDS) return;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  connections[fd].input = malloc(MAX_BODY + 1);
  if (fd > highest_fd) highest_fd = fd;
  struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
  epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
}

static void send_due_chunks(void) {
  char out[2048];
  uint64_t now = now_us();
  for (int fd = 0; fd <= highest_fd && num_streaming; fd++) {
    struct connection *c = &connections[fd];
    if (!c->chunks_left || c->due_us > now) continue;
    int n = add_word(out);
    c->due_us += pace_us;
    if (--c->chunks_left == 0) {
      n += add_end(out + n);
      num_streaming--;
    }
    put(fd, out, n);
  }
}

int main(int argc, char **argv) {
  int first_port = atoi(argv[1]), num_ports = atoi(argv[2]), one = 1;
  if (argc > 4) num_chunks = atoi(argv[3]), pace_us = atoi(argv[4]);
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_TIMERSLACK, 1000);
  struct rlimit limit = {MAX_FDS, MAX_FDS};
  setrlimit(RLIMIT_NOFILE, &limit);
  poller = epoll_create1(0);
  for (int i = 0; i < num_ports; i++) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(first_port + i),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&address, sizeof address) || listen(fd, 4096)) return perror("bind"), 1;
    connections[fd].is_listener = 1;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
  }
  for (;;) {
    struct epoll_event events[512];
    int n = epoll_wait(poller, events, 512, num_streaming ? 1 : -1);
    for (int i = 0; i < n; i++) {
      int fd = events[i].data.fd;
      connections[fd].is_listener ? on_connection(fd) : on_readable(fd);
    }
    if (num_streaming) send_due_chunks();
  }
}

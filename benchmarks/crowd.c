/* A load client for message servers: many connections, one thread, epoll, loopback only.
 *
 *   crowd load KIND PORT VERB [NAME=NUMBER ...]    send for a while and print one line: RATE P50 P99 MAX COUNT
 *   crowd answer KIND PORT                         provide the topic "bench": say "ready", then answer requests
 *
 * KIND is hsp, emp, yamp, nats or redis. VERB is what the connections send:
 *
 *   publish   an acknowledged publish; it is complete when its acknowledgement has come
 *   request   a request for "bench"; it is complete when its answer has come
 *   event     a publish without acknowledgement; it is complete when a subscriber of this client has received it
 *
 * Each connection keeps `window` messages incomplete. Messages are built before the clock starts: only ids are filled in
 * later. All answers and deliveries are decoded frame by frame. The rate is of completed messages a second; where
 * publishes have subscribers as well, of whichever are fewer: acknowledgements or deliveries. Latencies, from `send` to
 * completion, are in microseconds; they are taken where chunks are of 1 and windows of at most WINDOW_TIMED messages, and 0
 * otherwise. COUNT is of all messages, warm-up included.
 *
 *   connections=1   publishers or requesters
 *   subscribers=0   1: one that subscribes to everything (`#`); n: one for each of the first n topics
 *   topics=1        each connection takes them in turn. Topic 0 is "bench", topic i "bench/i"; its hsp type is 7 + i
 *   window=1        messages of a connection that may be incomplete
 *   chunk=1         messages handed to one `send`
 *   warmup=500      milliseconds before the clock starts
 *   time=2000       milliseconds that are measured
 *
 * When the time is over nothing more is sent, and what is incomplete must become complete: a lost message is an error.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "crowd_protocols.h"

enum {
    BODY = 64,               /* bytes of a message's body */
    MESSAGE = 320,           /* bytes of a whole message, at most */
    TOPICS = 128,            /* at most */
    CHUNK = 1024,            /* at most */
    WINDOW_TIMED = 16,       /* in larger windows messages are not timed */
    SAMPLES = 4 << 20,       /* latencies that are kept, at most */
    IN = 256 << 10,          /* bytes read at once */
    OUT = CHUNK * MESSAGE,   /* bytes that wait to be sent */
    DRAIN = 10,              /* seconds that incomplete messages have at the end */
};

void die(const char *format, ...)
{
    va_list rest;
    va_start(rest, format);
    fputs("crowd: ", stderr);
    vfprintf(stderr, format, rest);
    fputc('\n', stderr);
    exit(1);
}

static uint64_t now(void)   /* nanoseconds */
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* ---- Connections ------------------------------------------------------------------------------------------------- */

struct connection {
    int fd;
    int writing;                        /* whether epoll was asked to tell when there is room */
    char *in, *out;
    size_t have, pending;               /* bytes in them */
    char *messages;                     /* a pre-built message for each topic, MESSAGE bytes apart */
    uint64_t sent, completed;
    uint64_t began[WINDOW_TIMED];       /* when the incomplete messages were sent, by their number */
};

static const struct protocol *protocol;
static int epoll;

static void flush(struct connection *c)
{
    size_t gone = 0;
    while (gone < c->pending) {
        ssize_t sent = send(c->fd, c->out + gone, c->pending - gone, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN)
            break;
        if (sent < 0)
            die("send: %s", strerror(errno));
        gone += sent;
    }
    c->pending -= gone;
    if (c->pending)
        memmove(c->out, c->out + gone, c->pending);
    if (c->writing != !!c->pending) {
        c->writing = !!c->pending;
        struct epoll_event event = {.events = EPOLLIN | (c->writing ? EPOLLOUT : 0), .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
    }
}

static void queue(struct connection *c, const char *bytes, size_t size)
{
    if (c->pending + size > OUT)
        die("%zu bytes wait to be sent: the server does not read", c->pending);
    memcpy(c->out + c->pending, bytes, size);
    c->pending += size;
}

/* Reads once and calls `handle` for each complete frame but pings, which are answered here. Returns 0 at the end. */
static int receive(struct connection *c, void (*handle)(struct connection *, const struct frame *))
{
    ssize_t got = recv(c->fd, c->in + c->have, IN - c->have, 0);
    if (got < 0 && errno == EAGAIN)
        return 1;
    if (got <= 0)
        return 0;
    c->have += got;
    size_t done = 0;
    struct frame frame = {0};
    while (done < c->have && protocol->read(c->in + done, c->have - done, &frame)) {
        if (frame.what == REFUSAL)
            die("the server refused: %.*s", (int)(frame.size < 200 ? frame.size : 200), c->in + done);
        if (frame.what == PING) {
            c->in[done + protocol->pong_at] = protocol->pong;
            queue(c, c->in + done, frame.size);
            flush(c);
        } else {
            handle(c, &frame);
        }
        done += frame.size;
        memset(&frame, 0, sizeof frame);
    }
    c->have -= done;
    memmove(c->in, c->in + done, c->have);
    return 1;
}

static void converse(struct connection *c, const char *bytes, size_t size, int what)   /* send, and wait for that frame */
{
    struct frame frame = {0};
    if (send(c->fd, bytes, size, MSG_NOSIGNAL) != (ssize_t)size)
        die("send: %s", strerror(errno));
    for (;;) {
        while (c->have && protocol->read(c->in, c->have, &frame)) {
            if (frame.what == REFUSAL)
                die("the server refused: %.*s", (int)(frame.size < 200 ? frame.size : 200), c->in);
            c->have -= frame.size;
            memmove(c->in, c->in + frame.size, c->have);
            if ((int)frame.what == what)
                return;
            memset(&frame, 0, sizeof frame);
        }
        ssize_t got = recv(c->fd, c->in + c->have, IN - c->have, 0);
        if (got <= 0)
            die("the server does not answer: %s", got ? strerror(errno) : "it closed the connection");
        c->have += got;
    }
}

static void open_connection(struct connection *c, int port, int number)   /* connected, greeted, still blocking */
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {.tv_sec = 10};
    char hello[128];
    int one = 1;
    memset(c, 0, sizeof *c);
    c->in = malloc(IN);
    c->out = malloc(OUT);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (!c->in || !c->out || c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address))
        die("cannot connect to port %d: %s", port, strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    /* The answer shows that the server has accepted the connection: what follows is not delayed by its set-up. */
    converse(c, hello, protocol->hello(hello, number), HELLO);
}

static void watch(struct connection *c)   /* from here on the connection belongs to the loop */
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event))
        die("epoll: %s", strerror(errno));
}

static void topic_name(char out[64], int number)
{
    snprintf(out, 64, number ? "bench/%02d" : "bench", number);
}

static void join(struct connection *c, enum verb verb, const char *pattern)   /* subscribe to, or provide, a topic */
{
    char out[TOPICS * 32], body[TOPICS * 24], topic[64];
    struct message message = {.verb = MAP, .body = body};
    if (!strcmp(protocol->name, "hsp")) {   /* tell the hub the types of topics: else they come in envelopes */
        int size = sprintf(body, "{\"topics\":{");
        for (int i = 0; i < 100; i++) {
            topic_name(topic, i);
            size += sprintf(body + size, "%s\"%d\":\"%s\"", i ? "," : "", 7 + i, topic);
        }
        message.size = size + sprintf(body + size, "}}");
        converse(c, out, protocol->write(out, &message), ANSWER);
    }
    message.verb = verb;
    snprintf(message.topic, sizeof message.topic, "%s", pattern);
    message.size = sprintf(body, "{\"topic\":\"%s\"}", pattern);
    converse(c, out, protocol->write(out, &message), !strcmp(protocol->name, "nats") ? HELLO : ANSWER);
}

/* ---- Load -------------------------------------------------------------------------------------------------------- */

static struct option {
    const char *name;
    int value, least, most;
} options[] = {
    {"connections", 1, 1, 4096}, {"subscribers", 0, 0, TOPICS - 1}, {"topics", 1, 1, 100}, {"window", 1, 1, 1 << 16},
    {"chunk", 1, 1, CHUNK}, {"warmup", 500, 0, 60000}, {"time", 2000, 1, 60000},
};
enum { CONNECTIONS, SUBSCRIBERS, TOPICS_USED, WINDOW, CHUNK_SIZE, WARMUP, TIME };
#define OPTION(name) ((uint64_t)options[name].value)

static enum verb verb;
static struct connection *publishers;
static int sending = 1, timed;
static uint64_t sent, completed, delivered;
static uint32_t *samples;
static size_t sampled;

static size_t build(char *out, int connection, int topic)
{
    char body[BODY + 1];
    struct message message = {.verb = verb, .type = 7 + topic, .connection = connection, .body = body, .size = BODY};
    sprintf(body, "\"%08d%0*d\"", connection, BODY - 10, 0);   /* a JSON string that begins with the sender's number */
    topic_name(message.topic, topic);
    return protocol->write(out, &message);
}

static void fill(struct connection *c)   /* sends as much as the window allows */
{
    int id_at = protocol->id_at[verb];
    while (sending && !c->pending && c->sent - c->completed + OPTION(CHUNK_SIZE) <= OPTION(WINDOW)) {
        for (uint64_t i = 0; i < OPTION(CHUNK_SIZE); i++) {
            char *message = c->messages + c->sent % OPTION(TOPICS_USED) * (MESSAGE + sizeof(size_t));
            size_t size;
            memcpy(&size, message + MESSAGE, sizeof size);
            c->sent++;
            if (id_at)
                put(message + id_at, c->sent, protocol->id_size);
            queue(c, message, size);
        }
        sent += OPTION(CHUNK_SIZE);
        if (timed)
            c->began[(c->sent - 1) % WINDOW_TIMED] = now();
        flush(c);
    }
}

static void complete(struct connection *c)
{
    if (timed && sampled < SAMPLES) {
        uint64_t took = now() - c->began[c->completed % WINDOW_TIMED];
        samples[sampled++] = took < UINT32_MAX ? took : UINT32_MAX;
    }
    c->completed++;
    completed++;
    fill(c);
}

static struct connection *publisher(const struct frame *delivery)   /* whose message it is, by its body's first digits */
{
    const char *digits = delivery->body + delivery->body_size - BODY + 1;
    uint64_t number = 0;
    for (int i = 0; i < 8; i++)
        number = number * 10 + digits[i] - '0';
    if (number >= OPTION(CONNECTIONS))
        die("a message of nobody's was delivered");
    return publishers + number;
}

static void handle(struct connection *c, const struct frame *frame)
{
    if (frame->what == DELIVERY) {
        delivered++;
        if (verb == EVENT)
            complete(publisher(frame));
    } else if (frame->what == ANSWER) {
        complete(c);
    }
}

static uint64_t achieved(void)
{
    return OPTION(SUBSCRIBERS) && delivered < completed ? delivered : completed;
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void load(int port)
{
    struct connection *subscribers = calloc(OPTION(SUBSCRIBERS) + 1, sizeof *subscribers);
    publishers = calloc(OPTION(CONNECTIONS), sizeof *publishers);
    samples = malloc(SAMPLES * sizeof *samples);
    if (!subscribers || !publishers || !samples)
        die("no memory");
    for (uint64_t i = 0; i < OPTION(SUBSCRIBERS); i++) {
        char pattern[64] = "#";
        if (OPTION(SUBSCRIBERS) > 1)
            topic_name(pattern, i);
        open_connection(subscribers + i, port, 1000000 + i);
        join(subscribers + i, SUBSCRIBE, pattern);
        watch(subscribers + i);
    }
    for (uint64_t i = 0; i < OPTION(CONNECTIONS); i++) {
        struct connection *c = publishers + i;
        open_connection(c, port, i);
        c->messages = malloc(OPTION(TOPICS_USED) * (MESSAGE + sizeof(size_t)));
        for (uint64_t topic = 0; topic < OPTION(TOPICS_USED); topic++) {
            char *message = c->messages + topic * (MESSAGE + sizeof(size_t));
            size_t size = build(message, i, topic);
            memcpy(message + MESSAGE, &size, sizeof size);
        }
        watch(c);
    }
    for (uint64_t i = 0; i < OPTION(CONNECTIONS); i++)
        fill(publishers + i);

    uint64_t begin = now() + OPTION(WARMUP) * 1000000, end = UINT64_MAX, before = 0;
    double rate = 0;
    while (sending || completed < sent || (OPTION(SUBSCRIBERS) && delivered < sent)) {
        struct epoll_event events[512];
        int count = epoll_wait(epoll, events, 512, 100);
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) {
                flush(c);
                fill(c);
            }
            if (events[i].events & ~EPOLLOUT && !receive(c, handle))
                die("the server closed a connection");
        }
        uint64_t time = now();
        if (end == UINT64_MAX && time >= begin) {           /* warm: the clock starts */
            begin = time, end = time + OPTION(TIME) * 1000000, before = achieved(), sampled = 0;
        } else if (sending && time >= end) {                /* over */
            rate = (achieved() - before) * 1e9 / (time - begin);
            sending = 0, end = time;
        } else if (!sending && time > end + DRAIN * 1000000000ull) {
            die("of %lu messages sent %lu were completed and %lu delivered", sent, completed, delivered);
        }
    }
    qsort(samples, sampled, sizeof *samples, by_size);
    if (!sampled)
        samples[sampled++] = 0;
    printf("%.1f %.1f %.1f %.1f %lu\n", rate, samples[sampled / 2] / 1e3, samples[sampled * 99 / 100] / 1e3,
           samples[sampled - 1] / 1e3, completed);
}

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

static void respond(struct connection *c, const struct frame *frame)
{
    char reply[2 * MESSAGE];
    if (frame->what != DEMAND)
        return;
    if (frame->body_size > MESSAGE || frame->id_size > MESSAGE / 2)
        die("a request is too large");
    queue(c, reply, protocol->reply(reply, frame));
}

static void answer(int port)
{
    static struct connection c;
    struct epoll_event event;
    open_connection(&c, port, 0);
    join(&c, PROVIDE, "bench");
    watch(&c);
    puts("ready");
    fflush(stdout);
    do {
        flush(&c);
        epoll_wait(epoll, &event, 1, -1);
    } while (receive(&c, respond));
}

int main(int count, char **words)
{
    static const char *verbs[] = {"event", "publish", "request"};
    struct rlimit files;
    const struct option *last = options + sizeof options / sizeof *options;
    int loading = count >= 5 && !strcmp(words[1], "load");
    if (!loading && !(count == 4 && !strcmp(words[1], "answer")))
        die("usage: crowd load KIND PORT VERB [NAME=NUMBER ...] | crowd answer KIND PORT");
    for (size_t i = 0; i < sizeof PROTOCOLS / sizeof *PROTOCOLS; i++)
        if (!strcmp(PROTOCOLS[i].name, words[2]))
            protocol = PROTOCOLS + i;
    if (!protocol)
        die("unknown kind %s", words[2]);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    epoll = epoll_create1(0);
    if (!loading) {
        alarm(3600);   /* nobody needs it longer */
        answer(atoi(words[3]));
        return 0;
    }
    while (verb < SUBSCRIBE && strcmp(verbs[verb], words[4]))
        if (++verb == SUBSCRIBE)
            die("unknown verb %s", words[4]);
    for (int i = 5; i < count; i++) {
        size_t name = strcspn(words[i], "=");
        struct option *option = options;
        while (option < last && (strlen(option->name) != name || memcmp(option->name, words[i], name)))
            option++;
        if (option == last || !words[i][name])
            die("unknown option %s", words[i]);
        option->value = atoi(words[i] + name + 1);
        if (option->value < option->least || option->value > option->most)
            die("%s must be from %d to %d", option->name, option->least, option->most);
    }
    if (OPTION(CHUNK_SIZE) > OPTION(WINDOW) || (verb == EVENT && !OPTION(SUBSCRIBERS)))
        die("a chunk must fit into the window, and events need a subscriber");
    timed = OPTION(WINDOW) <= WINDOW_TIMED && OPTION(CHUNK_SIZE) == 1;
    alarm(60 + (OPTION(WARMUP) + OPTION(TIME)) / 1000);   /* whatever happens */
    load(atoi(words[3]));
    return 0;
}

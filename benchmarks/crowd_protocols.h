/* How `crowd.c` writes and reads the frames of each protocol: pre-built messages out, one frame at a time in. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void die(const char *format, ...);

/* ---- Bytes ------------------------------------------------------------------------------------------------------ */

static char *put(char *at, uint64_t value, int bytes)   /* big-endian */
{
    for (int i = bytes - 1; i >= 0; i--, value >>= 8)
        at[i] = (char)value;
    return at + bytes;
}

static uint64_t get(const char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | (unsigned char)at[i];
    return value;
}

static char *put_bytes(char *at, const char *bytes, size_t size)
{
    memcpy(at, bytes, size);
    return at + size;
}

static char *put_string(char *at, const char *text, int bytes)   /* after its length, in so many bytes */
{
    at = put(at, strlen(text), bytes);
    return put_bytes(at, text, strlen(text));
}

/* ---- Protocols --------------------------------------------------------------------------------------------------- */

enum verb { EVENT, PUBLISH, REQUEST, SUBSCRIBE, PROVIDE, MAP };

struct message {             /* what is to be written */
    enum verb verb;
    char topic[64];          /* of SUBSCRIBE: a pattern */
    int type;                /* the topic's number in hsp */
    int connection;          /* NATS: whose inbox answers go to */
    const char *body;
    size_t size;
};

struct frame {               /* what was read */
    enum { HELLO, ANSWER, DELIVERY, DEMAND, PING, OTHER, REFUSAL } what;
    size_t size;
    const char *id;          /* of DEMAND: what its answer has to name */
    size_t id_size;
    const char *body;
    size_t body_size;
};

struct protocol {
    const char *name;
    size_t (*hello)(char *out, int connection);                       /* what a connection sends first; a HELLO answers it */
    size_t (*write)(char *out, const struct message *message);
    int (*read)(const char *in, size_t have, struct frame *frame);    /* the first frame; 0: it is incomplete */
    size_t (*reply)(char *out, const struct frame *demand);
    int id_at[3], id_size;   /* where the id of an EVENT, PUBLISH, REQUEST stands; 0: it has none */
    int pong_at, pong;       /* a PING with this byte in this place is the answer to it */
};

static const char *operation(const struct message *message)   /* the topic to name in emp and yamp */
{
    static char name[128];
    switch (message->verb) {
    case SUBSCRIBE: return "$hub/subscribe";
    case PROVIDE: return "$hub/provide";
    case PUBLISH: snprintf(name, sizeof name, "$hub/publish/%s", message->topic); return name;
    default: return message->topic;
    }
}

/* hsp: command, id (4), type (2), length (4), payload. A PING is its hello: see `open_connection`. */

static size_t hsp_hello(char *out, int connection)
{
    (void)connection;
    out[0] = 3;
    return 1;
}

static size_t hsp_write(char *out, const struct message *message)
{
    static const int reserved[] = {[SUBSCRIBE] = 0xfd01, [PROVIDE] = 0xfd03, [MAP] = 0xfd05};
    char *at = put(out, message->verb != EVENT, 1);
    if (message->verb != EVENT)
        at = put(at, 1, 4);
    at = put(at, message->verb < SUBSCRIBE ? message->type : reserved[message->verb], 2);
    at = put(at, message->size, 4);
    return put_bytes(at, message->body, message->size) - out;
}

static int hsp_read(const char *in, size_t have, struct frame *frame)
{
    static const int heads[] = {7, 11, 5, 1, 1, 11, 5};
    static const int kinds[] = {DELIVERY, DEMAND, ANSWER, PING, HELLO, REFUSAL, REFUSAL};
    int command = have ? in[0] : 0;
    if (command < 0 || command > 6)
        die("hsp: unknown command %d", command);
    size_t head = heads[command];
    if (have < head)
        return 0;
    frame->what = kinds[command];
    frame->id = in + 1;
    frame->body = in + head;
    frame->body_size = head >= 7 ? get(in + head - 4, 4) : 0;
    frame->size = head + frame->body_size;
    return have >= frame->size;
}

static size_t hsp_reply(char *out, const struct frame *demand)
{
    return put_bytes(put(out, 2, 1), demand->id, 4) - out;
}

/* emp: envelope (8), extension blocks, body. Block 0 marks requests and answers, block 128 names the topic. */

static size_t emp_hello(char *out, int connection)
{
    (void)connection;
    memcpy(out, "\0\0\0\x0c\0\0\0\0\x01\0\0\0", 12);
    return 12;
}

static char *emp_exchange(char *at, int request, uint64_t id)   /* block 0; a request's is followed by the topic's */
{
    at = put(put(at, 20, 4), request ? 0x00800000 : 0, 4);
    return put(put(at, request ? 0x80000000 : 0, 4), id, 8);
}

static size_t emp_write(char *out, const struct message *message)
{
    const char *topic = operation(message);
    char *at = put(out + 4, 0x05800000, 4);
    if (message->verb != EVENT)
        at = emp_exchange(at, 1, 1);
    at = put(put(put(at, 11 + strlen(topic), 4), 0x80000000, 4), 1, 1);
    at = put_bytes(put_string(at, topic, 2), message->body, message->size);
    put(out, at - out, 4);
    return at - out;
}

static int emp_read(const char *in, size_t have, struct frame *frame)
{
    static const int kinds[] = {HELLO, REFUSAL, PING, OTHER, REFUSAL, DELIVERY};   /* hello, bye, ping, pong, error, data */
    if (have < 8 || have < get(in, 4))
        return 0;
    if (in[4] < 0 || in[4] > 5)
        die("emp: unknown type %d", in[4]);
    frame->what = kinds[(int)in[4]];
    frame->size = get(in, 4);
    const char *block = in + 8;
    for (int more = in[5] & 0x80; more; block += get(block, 4)) {
        more = block[5] & 0x80;
        if (block[4] == 0) {
            frame->what = block[8] & 0x80 ? DEMAND : ANSWER;
            frame->id = block + 12;
        } else if ((unsigned char)block[4] == 128 && block[8] & 0x80) {
            frame->what = REFUSAL;
        }
    }
    frame->body = block;
    frame->body_size = in + frame->size - block;
    return 1;
}

static size_t emp_reply(char *out, const struct frame *demand)
{
    char *at = emp_exchange(put(put(out, 28 + demand->body_size, 4), 0x05800000, 4), 0, get(demand->id, 8));
    return put_bytes(at, demand->body, demand->body_size) - out;
}

/* yamp: type, uid (16), uri after its length (1); a request has one byte more, a response 17; body after its length (4). */

static size_t yamp_hello(char *out, int connection)
{
    (void)connection;
    memcpy(out, "\0\0\x01\x04json", 8);
    return 8;
}

static size_t yamp_write(char *out, const struct message *message)
{
    char *at = put(put(put(out, message->verb == EVENT ? 5 : 6, 1), 1, 8), 1, 8);
    at = put_string(at, operation(message), 1);
    if (message->verb != EVENT)
        at = put(at, 0, 1);
    return put_bytes(put(at, message->size, 4), message->body, message->size) - out;
}

static int yamp_read(const char *in, size_t have, struct frame *frame)
{
    if (have < 4)
        return 0;
    int type = in[0];
    if (type < 5) {
        static const int kinds[] = {HELLO, PING, OTHER, REFUSAL, REFUSAL};   /* handshake, ping, pong, close, redirect */
        frame->what = kinds[type];
        frame->size = type == 0 ? 4 + get(in + 3, 1) : type < 3 ? 2 + get(in + 1, 1) : 3 + get(in + 1, 2);
        return have >= frame->size;
    }
    if (type > 8 || type == 7)
        die("yamp: unexpected frame of type %d", type);
    if (have < 18)
        return 0;
    size_t uri = get(in + 17, 1), head = 18 + uri + (type == 5 ? 0 : type == 6 ? 1 : 17) + 4;
    if (have < head)
        return 0;
    frame->what = type == 5 ? DELIVERY : type == 6 ? DEMAND : in[head - 5] == 0 ? ANSWER : REFUSAL;
    frame->id = in + 1;
    frame->id_size = 17 + uri;
    frame->body = in + head;
    frame->body_size = get(in + head - 4, 4);
    frame->size = head + frame->body_size;
    return have >= frame->size;
}

static size_t yamp_reply(char *out, const struct frame *demand)
{
    static uint64_t uid;
    char *at = put(put(put(out, 8, 1), 2, 8), ++uid, 8);
    at = put_bytes(at, demand->id + 16, demand->id_size - 16);
    at = put(put_bytes(at, demand->id, 16), 0, 1);
    return put_bytes(put(at, demand->body_size, 4), demand->body, demand->body_size) - out;
}

/* NATS: lines. Answers come to an inbox of each connection, named in what is published. */

static size_t nats_hello(char *out, int connection)
{
    return sprintf(out, "CONNECT {\"verbose\":false,\"pedantic\":false}\r\nSUB _INBOX.%d 1\r\nPING\r\n", connection);
}

static size_t nats_write(char *out, const struct message *message)
{
    char inbox[32] = "";
    if (message->verb == SUBSCRIBE || message->verb == PROVIDE)
        return sprintf(out, "SUB %s 2\r\nPING\r\n", strcmp(message->topic, "#") ? message->topic : ">");
    if (message->verb != EVENT)
        sprintf(inbox, " _INBOX.%d", message->connection);
    int head = sprintf(out, "PUB %s%s %zu\r\n", message->topic, inbox, message->size);
    return put_bytes(put_bytes(out + head, message->body, message->size), "\r\n", 2) - out;
}

static int nats_read(const char *in, size_t have, struct frame *frame)
{
    const char *end = memchr(in, '\n', have);
    if (end == NULL)
        return 0;
    frame->size = end + 1 - in;
    if (memcmp(in, "MSG ", 4)) {
        frame->what = *in == '-' ? REFUSAL : !memcmp(in, "PING", 4) ? PING : !memcmp(in, "PONG", 4) ? HELLO : OTHER;
        return 1;
    }
    /* MSG subject sid [reply-to] size */
    const char *sid = memchr(in + 4, ' ', end - in - 4), *third = memchr(sid + 1, ' ', end - sid - 1);
    const char *fourth = memchr(third + 1, ' ', end - third - 1);
    frame->what = fourth ? DEMAND : in[4] == '_' ? ANSWER : DELIVERY;
    frame->id = third + 1;
    frame->id_size = fourth ? fourth - third - 1 : 0;
    frame->body = end + 1;
    frame->body_size = atoi(fourth ? fourth + 1 : third + 1);
    frame->size += frame->body_size + 2;
    return have >= frame->size;
}

static size_t nats_reply(char *out, const struct frame *demand)
{
    int head = sprintf(out, "PUB %.*s %zu\r\n", (int)demand->id_size, demand->id, demand->body_size);
    return put_bytes(put_bytes(out + head, demand->body, demand->body_size), "\r\n", 2) - out;
}

/* Redis Streams: XADD, answered by a string after its length. */

static size_t redis_hello(char *out, int connection)
{
    (void)connection;
    return sprintf(out, "PING\r\n");
}

static size_t redis_write(char *out, const struct message *message)
{
    int head = sprintf(out, "*5\r\n$4\r\nXADD\r\n$%zu\r\n%s\r\n$1\r\n*\r\n$1\r\nd\r\n$%zu\r\n", strlen(message->topic),
                       message->topic, message->size);
    return put_bytes(put_bytes(out + head, message->body, message->size), "\r\n", 2) - out;
}

static int redis_read(const char *in, size_t have, struct frame *frame)
{
    const char *end = memchr(in, '\n', have);
    if (end == NULL)
        return 0;
    frame->what = *in == '$' ? ANSWER : *in == '+' ? HELLO : REFUSAL;
    frame->size = end + 1 - in + (*in == '$' ? atoi(in + 1) + 2 : 0);
    return have >= frame->size;
}

static const struct protocol PROTOCOLS[] = {
    {"hsp", hsp_hello, hsp_write, hsp_read, hsp_reply, {0, 1, 1}, 4, 0, 4},
    {"emp", emp_hello, emp_write, emp_read, emp_reply, {0, 20, 20}, 8, 4, 3},
    {"yamp", yamp_hello, yamp_write, yamp_read, yamp_reply, {9, 9, 9}, 8, 0, 2},
    {"nats", nats_hello, nats_write, nats_read, nats_reply, {0}, 0, 1, 'O'},
    {"redis", redis_hello, redis_write, redis_read, NULL, {0}, 0, 0, 0},
};

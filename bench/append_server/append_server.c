/* The lower limit of a broker's cost of a send: a server in C that stores messages and answers them, and nothing else.
 *
 *     append_server DIRECTORY [BYTES]    listen on a free port of 127.0.0.1, print it, and serve until a signal
 *
 * BYTES is the size of a log file, by default 1 GiB. One thread, one epoll set. The frames that are ready in one turn
 * form one pass, as in Gantry's broker, so that neither many frames of one connection nor one frame of each of many
 * connections cost a write of their own:
 *
 *     ONE read per connection -> frames -> records -> ONE pwrite to the log -> ONE write of replies per connection
 *
 * A send of code 310, 10 or 320 (a batch), with a JSON or a binary header, becomes a record of RocketMQ with the CRC of
 * its body and its properties, and a unit of 20 bytes in its queue. Its reply has the fields of Gantry's.
 *
 * The log is a row of preallocated files, written with pwrite, as Gantry's is. A store through a map would save the
 * call; but a log always writes new pages, and the kernel fills each new page of a map with zeros first, which costs
 * more. Queues are mapped, because a unit is far smaller than a page.
 *
 * What it does not do, so that it is a limit and no broker:
 *   - no checks but those of lengths: any topic and queue is accepted, with any flags, and signatures are ignored;
 *   - no locks, no threads, no other requests: any other frame closes its connection;
 *   - no durability: nothing is flushed, and there is no recovery;
 *   - no replication, no index, no hash of the tags, no CRC of the whole record, no properties of the broker;
 *   - no statistics, no flow control, no log, no deletion of old files.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bytes.h"
#include "crc32.h"
#include "requests.h"

#define SEND_V1 10
#define SEND_V2 310
#define SEND_BATCH 320
#define MESSAGE_MAGIC 0xDAA320A7u
#define BLANK_MAGIC 0xCBD43194u
#define CRC_MASK 0x7FFFFFFFu

#define FRAME_BYTES_MAX ((size_t)8 << 20)
#define READ_BYTES ((size_t)256 << 10)
#define PASS_BYTES ((size_t)256 << 10) /* written at this size, so that the pass stays in the processor's cache */
#define OUTPUT_BYTES_MAX ((size_t)64 << 20)
#define RECORD_HEAD_BYTES 88
#define RECORD_BYTES_MIN 91
#define BLANK_BYTES 8
#define BATCH_HEAD_BYTES 20
#define BATCH_MESSAGES_MAX 4096
#define REPLY_BYTES_MAX 512 /* without unique id and message ids */
#define UNIT_BYTES 20
#define WINDOW_BYTES ((size_t)20480 * 293) /* a multiple of a unit and of a page; 300,032 units, like RocketMQ's */
#define QUEUES_MAX 1024
#define TOPIC_BYTES_MAX 127
#define PROPERTIES_BYTES_MAX 32767
#define EVENTS_MAX 256

typedef struct {
    int fd;
    bool is_closed, is_watched_for_room;
    uint8_t host[8];
    uint8_t *input;
    size_t input_bytes, input_capacity;
    uint8_t *output;
    size_t output_start, output_bytes, output_capacity;
} Connection;

typedef struct {
    uint64_t end; /* the next offset */
    size_t place; /* of the next unit, in the window */
    uint8_t *window;
    int file;
} Queue;

static const char *directory;
static uint64_t file_bytes = (uint64_t)1 << 30;
static int log_file = -1;
static uint64_t log_base, log_written; /* the offset of the file, and the end of what is written of it */
static uint8_t *pass;                  /* the records after that end */
static size_t pass_bytes;
static Queue queues[QUEUES_MAX];
static uint64_t batch_offsets[BATCH_MESSAGES_MAX];
static uint8_t own_host[8];
static char own_host_hex[17];
static int64_t now_ms;
static int epoll_set, listener;

static _Noreturn void fail(const char *action) {
    fprintf(stderr, "append_server: %s: %s\n", action, strerror(errno));
    exit(1);
}

static void *allocate(void *block, size_t bytes) {
    block = realloc(block, bytes);
    if (block == NULL)
        fail("memory");
    return block;
}

/* -- log and queues ------------------------------------------------------------------------------------------------ */

static int create_file(const char *name, uint64_t number) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s%020llu", directory, name, (unsigned long long)number) >= (int)sizeof path)
        fail("the name of the directory is too long");
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0)
        fail(path);
    return file;
}

static void open_log_file(void) {
    log_file = create_file("", log_base);
    log_written = 0;
    off_t bytes = (off_t)file_bytes;
    if (fallocate(log_file, 0, 0, bytes) != 0 && (errno != EOPNOTSUPP || ftruncate(log_file, bytes) != 0))
        fail("allocate a log file");
}

static void write_pass(void) {
    for (size_t done = 0; done < pass_bytes;) {
        ssize_t count = pwrite(log_file, pass + done, pass_bytes - done, (off_t)(log_written + done));
        if (count < 0 && errno != EINTR)
            fail("write the log");
        done += count < 0 ? 0 : (size_t)count;
    }
    log_written += pass_bytes;
    pass_bytes = 0;
}

/* Return the place of the next record, which has at most so many bytes. */
static uint8_t *reserve(size_t bytes) {
    if (pass_bytes > 0 && pass_bytes + bytes > PASS_BYTES)
        write_pass();
    if (log_written + pass_bytes + bytes + BLANK_BYTES > file_bytes) {
        uint32_t rest = (uint32_t)(file_bytes - log_written - pass_bytes);
        put_32(put_32(pass + pass_bytes, rest), BLANK_MAGIC);
        pass_bytes += BLANK_BYTES;
        write_pass();
        close(log_file);
        log_base += file_bytes;
        open_log_file();
    }
    return pass + pass_bytes;
}

static void map_window(Queue *queue, uint64_t id) {
    if (queue->window == NULL)
        queue->file = create_file("queue-", id);
    else
        munmap(queue->window, WINDOW_BYTES);
    off_t start = (off_t)(queue->end * UNIT_BYTES);
    if (ftruncate(queue->file, start + (off_t)WINDOW_BYTES) != 0)
        fail("extend a queue");
    queue->window = mmap(NULL, WINDOW_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, queue->file, start);
    if (queue->window == MAP_FAILED)
        fail("map a queue");
    queue->place = 0;
}

/* Append a unit; the unit ends with the hash of the tags, which stays 0. */
static void add_unit(Queue *queue, uint64_t id, uint64_t physical, uint32_t record_bytes) {
    if (queue->window == NULL || queue->place == WINDOW_BYTES)
        map_window(queue, id);
    put_64(put_32(put_64(queue->window + queue->place, physical), record_bytes), 0);
    queue->place += UNIT_BYTES;
    queue->end++;
}

/* Replace JSON's escapes; the result is never longer than the text. Surrogates are not joined. */
static uint8_t *put_unescaped(uint8_t *at, Slice text) {
    const uint8_t *from = text.start, *end = from + text.bytes;
    while (from < end) {
        const uint8_t *escape = memchr(from, '\\', (size_t)(end - from));
        size_t run = (size_t)((escape == NULL ? end : escape) - from);
        at = put(at, from, run);
        from += run;
        if (end - from < 2)
            return at;
        uint8_t letter = from[1];
        from += 2;
        if (letter == 'u' && end - from >= 4) {
            unsigned value = 0;
            for (int i = 0; i < 4; i++, from++)
                value = value << 4 | ((*from & 15u) + (*from > '9' ? 9u : 0u));
            value &= 0xFFFF;
            if (value >= 0x800)
                *at++ = (uint8_t)(0xE0 | value >> 12);
            if (value >= 0x80)
                *at++ = (uint8_t)(value >= 0x800 ? 0x80 | (value >> 6 & 0x3F) : 0xC0 | value >> 6);
            *at++ = (uint8_t)(value >= 0x80 ? 0x80 | (value & 0x3F) : value);
        } else
            *at++ = letter == 'n' ? '\n' : letter == 't' ? '\t' : letter == 'r' ? '\r' : letter;
    }
    return at;
}

/* Put a message into the pass and its queue; return its physical offset. False if a length does not fit a record. */
static bool append(const Connection *c, const Request *request, uint32_t flag, Slice body, Slice properties,
                   bool is_json, uint64_t *physical) {
    if (request->queue_id < 0 || request->queue_id >= QUEUES_MAX || request->topic.bytes > TOPIC_BYTES_MAX ||
        properties.bytes > PROPERTIES_BYTES_MAX)
        return false;
    Queue *queue = &queues[request->queue_id];
    uint8_t *record = reserve(RECORD_BYTES_MIN + body.bytes + request->topic.bytes + properties.bytes);
    *physical = log_base + log_written + pass_bytes;
    uint8_t *at = put(record + RECORD_HEAD_BYTES, body.start, body.bytes);
    *at++ = (uint8_t)request->topic.bytes;
    uint8_t *length = put(at, request->topic.start, request->topic.bytes);
    at = length + 2;
    at = is_json ? put_unescaped(at, properties) : put(at, properties.start, properties.bytes);
    put_16(length, (size_t)(at - length - 2));
    uint32_t total = (uint32_t)(at - record);
    at = put_32(put_32(record, total), MESSAGE_MAGIC);
    at = put_32(at, crc32(body.start, body.bytes) & CRC_MASK);
    at = put_32(put_32(at, (uint32_t)request->queue_id), flag);
    at = put_64(put_64(at, queue->end), *physical);
    at = put_64(put_32(at, (uint32_t)request->sys_flag), (uint64_t)request->born_ms);
    at = put(put_64(put(at, c->host, 8), (uint64_t)now_ms), own_host, 8);
    put_32(put_64(put_32(at, (uint32_t)request->reconsume_times), 0), (uint32_t)body.bytes);
    pass_bytes += total;
    add_unit(queue, (uint64_t)request->queue_id, *physical, total);
    return true;
}

/* -- requests ------------------------------------------------------------------------------------------------------ */

static void answer(Connection *c, const Request *request, uint64_t queue_offset, const uint64_t *physical,
                   size_t count) {
    Slice unique = unique_id(request);
    size_t needed = c->output_start + c->output_bytes + REPLY_BYTES_MAX + unique.bytes + 33 * count;
    if (needed > c->output_capacity) {
        c->output_capacity = 2 * needed;
        c->output = allocate(c->output, c->output_capacity);
    }
    uint8_t *frame = c->output + c->output_start + c->output_bytes, *at = frame + 8;
    at = PUT_TEXT(at, "{\"code\":0,\"extFields\":{\"MSG_REGION\":\"DefaultRegion\",\"TRACE_ON\":\"true\",\"msgId\":\"");
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            *at++ = ',';
        at = put_hex(put(at, own_host_hex, 16), physical[i]);
    }
    at = put_decimal(PUT_TEXT(at, "\",\"queueId\":\""), request->queue_id);
    at = put_decimal(PUT_TEXT(at, "\",\"queueOffset\":\""), (int64_t)queue_offset);
    at = put(PUT_TEXT(at, "\",\"transactionId\":\""), unique.start, unique.bytes);
    at = put_decimal(PUT_TEXT(at, "\"},\"flag\":1,\"language\":\"CPP\",\"opaque\":"), request->opaque);
    at = PUT_TEXT(at, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}");
    put_32(put_32(frame, (uint32_t)(at - frame - 4)), (uint32_t)(at - frame - 8));
    c->output_bytes += (size_t)(at - frame);
}

/* Store every message of a batch: total 4, magic 4, CRC 4, flag 4, body length 4, body, properties length 2. */
static bool store_batch(Connection *c, const Request *request, Slice rest) {
    uint64_t first = 0;
    size_t count = 0;
    while (rest.bytes > 0) {
        if (rest.bytes < BATCH_HEAD_BYTES + 2 || count == BATCH_MESSAGES_MAX)
            return false;
        uint32_t total = read_32(rest.start), body_bytes = read_32(rest.start + 16);
        if (total > rest.bytes || total < BATCH_HEAD_BYTES + 2 || body_bytes > total - BATCH_HEAD_BYTES - 2)
            return false;
        Slice body = {rest.start + BATCH_HEAD_BYTES, body_bytes};
        Slice properties = {body.start + body_bytes + 2, total - BATCH_HEAD_BYTES - 2 - body_bytes};
        if (!append(c, request, read_32(rest.start + 12), body, properties, false, &batch_offsets[count]))
            return false;
        if (count++ == 0)
            first = queues[request->queue_id].end - 1;
        rest.start += total;
        rest.bytes -= total;
    }
    if (count > 0 && !(request->flag & FLAG_ONEWAY))
        answer(c, request, first, batch_offsets, count);
    return count > 0;
}

static bool handle_frame(Connection *c, uint8_t kind, Slice header, Slice body) {
    Request request = {.properties = {(const uint8_t *)"", 0}};
    bool is_parsed = kind == 0 ? parse_json(header.start, header.start + header.bytes, &request)
                               : parse_binary(header.start, header.start + header.bytes, &request);
    if (!is_parsed || request.topic.bytes == 0)
        return false;
    if (request.code == SEND_BATCH)
        return store_batch(c, &request, body);
    uint64_t physical;
    if ((request.code != SEND_V2 && request.code != SEND_V1) ||
        !append(c, &request, (uint32_t)request.message_flag, body, request.properties, request.is_json, &physical))
        return false;
    if (!(request.flag & FLAG_ONEWAY))
        answer(c, &request, queues[request.queue_id].end - 1, &physical, 1);
    return true;
}

/* -- connections --------------------------------------------------------------------------------------------------- */

/* Handle the whole frames of the input: total 4, kind 1, header length 3, header, body. False closes the connection. */
static bool handle_input(Connection *c) {
    size_t at = 0;
    while (c->input_bytes - at >= 8) {
        const uint8_t *frame = c->input + at;
        size_t total = read_32(frame), header_bytes = read_32(frame + 4) & 0xFFFFFF;
        if (total > FRAME_BYTES_MAX || total < 4 + header_bytes)
            return false;
        if (c->input_bytes - at < 4 + total) {
            if (4 + total > c->input_capacity) {
                c->input_capacity = 4 + total;
                c->input = allocate(c->input, c->input_capacity);
            }
            break;
        }
        Slice header = {frame + 8, header_bytes}, body = {frame + 8 + header_bytes, total - 4 - header_bytes};
        if (!handle_frame(c, frame[4], header, body))
            return false;
        at += 4 + total;
    }
    c->input_bytes -= at;
    memmove(c->input, c->input + at, c->input_bytes);
    return true;
}

static bool read_input(Connection *c) {
    ssize_t count = recv(c->fd, c->input + c->input_bytes, c->input_capacity - c->input_bytes, 0);
    if (count <= 0)
        return count < 0 && (errno == EAGAIN || errno == EINTR);
    c->input_bytes += (size_t)count;
    return handle_input(c);
}

static bool write_output(Connection *c) {
    while (c->output_bytes > 0) {
        ssize_t count = send(c->fd, c->output + c->output_start, c->output_bytes, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            break;
        c->output_start += (size_t)count;
        c->output_bytes -= (size_t)count;
    }
    if (c->output_bytes == 0)
        c->output_start = 0;
    else if (errno != EAGAIN || c->output_start + c->output_bytes > OUTPUT_BYTES_MAX)
        return false;
    if (c->is_watched_for_room != (c->output_bytes > 0)) {
        c->is_watched_for_room = !c->is_watched_for_room;
        struct epoll_event event = {.events = EPOLLIN | (c->is_watched_for_room ? EPOLLOUT : 0u), .data.ptr = c};
        return epoll_ctl(epoll_set, EPOLL_CTL_MOD, c->fd, &event) == 0;
    }
    return true;
}

static void accept_connections(void) {
    struct sockaddr_in peer;
    socklen_t peer_bytes = sizeof peer;
    int fd, on = 1;
    while ((fd = accept4(listener, (struct sockaddr *)&peer, &peer_bytes, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        Connection *c = allocate(NULL, sizeof *c);
        *c = (Connection){.fd = fd, .input_capacity = READ_BYTES, .input = allocate(NULL, READ_BYTES)};
        memcpy(c->host, &peer.sin_addr, 4);
        put_32(c->host + 4, ntohs(peer.sin_port));
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(epoll_set, EPOLL_CTL_ADD, fd, &event) != 0)
            fail("watch a connection");
    }
}

static void close_connection(Connection *c) {
    close(c->fd);
    free(c->input);
    free(c->output);
    free(c);
}

/* One turn: all input, then one write to the log, then all output. */
static void take_turn(void) {
    struct epoll_event events[EVENTS_MAX];
    struct timespec now;
    int count = epoll_wait(epoll_set, events, EVENTS_MAX, -1);
    clock_gettime(CLOCK_REALTIME, &now);
    now_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    for (int i = 0; i < count; i++) {
        Connection *c = events[i].data.ptr;
        if (c == NULL)
            accept_connections();
        else if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
            c->is_closed = !read_input(c);
    }
    write_pass();
    for (int i = 0; i < count; i++) {
        Connection *c = events[i].data.ptr;
        if (c != NULL && (!write_output(c) || c->is_closed))
            close_connection(c);
    }
}

int main(int count, char **arguments) {
    if (count == 3)
        file_bytes = strtoull(arguments[2], NULL, 10);
    if (count < 2 || count > 3 || file_bytes < 2 * FRAME_BYTES_MAX) {
        fprintf(stderr, "usage: append_server DIRECTORY [BYTES of a log file, at least %zu]\n", 2 * FRAME_BYTES_MAX);
        return 2;
    }
    directory = arguments[1];
    crc32_prepare();
    pass = allocate(NULL, PASS_BYTES + FRAME_BYTES_MAX + 4096);
    open_log_file();
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t address_bytes = sizeof address;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    epoll_set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    if (listener < 0 || epoll_set < 0 || bind(listener, (struct sockaddr *)&address, address_bytes) != 0 ||
        listen(listener, SOMAXCONN) != 0 || getsockname(listener, (struct sockaddr *)&address, &address_bytes) != 0 ||
        epoll_ctl(epoll_set, EPOLL_CTL_ADD, listener, &event) != 0)
        fail("listen");
    memcpy(own_host, &address.sin_addr, 4);
    put_32(own_host + 4, ntohs(address.sin_port));
    uint64_t host;
    memcpy(&host, own_host, 8);
    put_hex((uint8_t *)own_host_hex, be64toh(host));
    printf("%u\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;)
        take_turn();
}

/* Either end of the measure of names, so cheap that neither is what is measured:

       dns_ends client ADDRESS KIND PER_SECOND NAMES SECONDS    asks, and prints what came of it
       dns_ends upstream ADDRESS                                knows every name, and tells who sends
                                                                it nothing at all how many questions
                                                                for kept names it has had

   Questions leave at a fixed rate whatever became of those before (PER_SECOND 0: as many as are
   answered, WINDOW under way). An answer has taken until the kernel had it, which notes the time:
   how long the client waits for a processor counts for nobody. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

enum { PORT = 53, WINDOW = 64, LARGEST = 4096, HEADER = 12, NUMBERS = 1 << 16 };

static const double PATIENCE_S = 3.0; /* for the last ones; who is not answered is lost */
static const double GIVEN_UP_S = 1.0; /* and makes room for another one by then */

static double seconds(const struct timespec *at)
{
	return at->tv_sec + at->tv_nsec / 1e9;
}

static double now_s(void)
{
	/* Of the clock by which the kernel notes when packets came. */
	struct timespec at;

	clock_gettime(CLOCK_REALTIME, &at);
	return seconds(&at);
}

static int open_socket(const char *address, struct sockaddr_in *at)
{
	int made = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), room = 4 << 20, one = 1;

	if (made < 0)
		err(1, "socket");
	*at = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT)};
	if (inet_pton(AF_INET, address, &at->sin_addr) != 1)
		errx(1, "%s is no address", address);
	setsockopt(made, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
	if (setsockopt(made, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one))
		err(1, "SO_TIMESTAMPNS");
	return made;
}

/* Asking */

static size_t write_question(uint8_t *to, uint16_t number, const char *name)
{
	size_t at = HEADER;

	memcpy(to, (uint8_t[HEADER]){number >> 8, number & 0xff, 1, 0, 0, 1}, HEADER);
	while (*name) {
		size_t length = strcspn(name, ".");

		to[at++] = length;
		memcpy(to + at, name, length);
		at += length;
		name += length + (name[length] == '.');
	}
	memcpy(to + at, (uint8_t[]){0, 0, 1, 0, 1}, 5);
	return at + 5;
}

struct asking {
	int socket;
	double *took_s; /* room for each question */
	double sent_s[NUMBERS]; /* 0: not under way */
	long sent, answered, under_way;
};

static void receive(struct asking *asking)
{
	uint8_t message[LARGEST], control[256];

	for (;;) {
		struct iovec part = {message, sizeof message};
		struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1,
				      .msg_control = control, .msg_controllen = sizeof control};
		ssize_t length = recvmsg(asking->socket, &head, MSG_DONTWAIT);
		double came_s = 0, *sent_s;
		struct cmsghdr *each;

		if (length < 0)
			return;
		if (length < HEADER)
			continue;
		for (each = CMSG_FIRSTHDR(&head); each; each = CMSG_NXTHDR(&head, each))
			if (each->cmsg_level == SOL_SOCKET && each->cmsg_type == SO_TIMESTAMPNS) {
				struct timespec at;

				memcpy(&at, CMSG_DATA(each), sizeof at);
				came_s = seconds(&at);
			}
		sent_s = &asking->sent_s[message[0] << 8 | message[1]];
		if (!*sent_s)
			continue;
		asking->under_way--;
		if (!(message[3] & 0xf))
			asking->took_s[asking->answered++] = came_s - *sent_s;
		*sent_s = 0;
	}
}

static void give_up(struct asking *asking, double before_s)
{
	for (int number = 0; number < NUMBERS; number++)
		if (asking->sent_s[number] && asking->sent_s[number] < before_s) {
			asking->sent_s[number] = 0;
			asking->under_way--;
		}
}

static void send_next(struct asking *asking, const char *kind, int names, long run)
{
	uint16_t number = asking->sent & 0xffff;
	int which = asking->sent % names;
	uint8_t message[512];
	char name[128];
	size_t length;

	if (!strcmp(kind, "cluster"))
		snprintf(name, sizeof name, "web-%d.default.svc.cluster.local", which);
	else if (!strcmp(kind, "kept"))
		snprintf(name, sizeof name, "kept-%d.example.com", which);
	else
		snprintf(name, sizeof name, "fresh-%lx-%ld.example.com", run, asking->sent);
	length = write_question(message, number, name);
	asking->under_way += !asking->sent_s[number];
	asking->sent_s[number] = now_s();
	if (send(asking->socket, message, length, 0) < 0)
		err(1, "send");
	asking->sent++;
}

static int compare(const void *one, const void *other)
{
	double difference = *(const double *)one - *(const double *)other;

	return (difference > 0) - (difference < 0);
}

static double part_ms(const struct asking *asking, double part)
{
	/* Of nothing at all: worse than any. */
	return 1e3 * (asking->answered ? asking->took_s[(long)(asking->answered * part)] : 60.0);
}

static int ask(const char *address, const char *kind, double rate, int names, double asking_s)
{
	static struct asking asking;
	struct pollfd readable = {.events = POLLIN};
	struct sockaddr_in at;
	double start_s, end_s;
	struct timespec begun;

	asking.socket = readable.fd = open_socket(address, &at);
	if (connect(asking.socket, (struct sockaddr *)&at, sizeof at))
		err(1, "connect");
	asking.took_s = malloc(sizeof(double) * (rate ? rate * asking_s + 1 : 1e6 * asking_s));
	if (!asking.took_s)
		err(1, "malloc");
	clock_gettime(CLOCK_REALTIME, &begun);
	start_s = seconds(&begun);
	end_s = start_s + asking_s;
	for (;;) {
		double at_s = now_s(), next_s = end_s + PATIENCE_S;

		receive(&asking);
		if (at_s >= end_s && (!asking.under_way || at_s >= next_s))
			break;
		if (at_s < end_s && rate) {
			next_s = start_s + asking.sent / rate;
			if (at_s >= next_s) {
				send_next(&asking, kind, names, begun.tv_nsec);
				continue;
			}
		} else if (at_s < end_s) {
			if (asking.under_way < WINDOW) {
				send_next(&asking, kind, names, begun.tv_nsec);
				continue;
			}
			next_s = at_s + GIVEN_UP_S;
		}
		struct timespec left = {(time_t)(next_s - at_s), (next_s - at_s - (time_t)(next_s - at_s)) * 1e9};

		if (ppoll(&readable, 1, &left, NULL) == 0 && !rate && at_s < end_s)
			give_up(&asking, at_s);
	}
	qsort(asking.took_s, asking.answered, sizeof(double), compare);
	printf("{\"asked\": %ld, \"answered\": %ld, \"took_s\": %g, \"p50_ms\": %.4f, "
	       "\"p99_ms\": %.4f, \"p999_ms\": %.4f}\n",
	       asking.sent, asking.answered, asking_s, part_ms(&asking, .5), part_ms(&asking, .99),
	       part_ms(&asking, .999));
	return 0;
}

/* Answering */

static int answer(const char *address)
{
	static const uint8_t record[] = {0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0x0e, 0x10, 0, 4, 192, 0, 2, 80};
	struct sockaddr_in at;
	int made = open_socket(address, &at);
	uint64_t kept = 0;

	if (bind(made, (struct sockaddr *)&at, sizeof at))
		err(1, "bind %s", address);
	puts("ready");
	fflush(stdout);
	for (;;) {
		uint8_t message[LARGEST];
		struct sockaddr_storage client;
		socklen_t size = sizeof client;
		ssize_t length = recvfrom(made, message, sizeof message - sizeof record, 0,
					  (struct sockaddr *)&client, &size);
		size_t end = HEADER;

		if (length == 0)
			sendto(made, &kept, sizeof kept, 0, (struct sockaddr *)&client, size);
		if (length < HEADER + 5)
			continue;
		while (end < (size_t)length && message[end])
			end += 1 + message[end];
		end += 5;
		if (end > (size_t)length)
			continue;
		kept += !strncasecmp((char *)message + HEADER + 1, "kept-", 5);
		memcpy(message + 2, (uint8_t[]){0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0}, 10);
		memcpy(message + end, record, sizeof record);
		sendto(made, message, end + sizeof record, 0, (struct sockaddr *)&client, size);
	}
}

int main(int count, char **words)
{
	if (count == 3 && !strcmp(words[1], "upstream"))
		return answer(words[2]);
	if (count == 7 && !strcmp(words[1], "client"))
		return ask(words[2], words[3], atof(words[4]), atoi(words[5]), atof(words[6]));
	errx(2, "usage: dns_ends client ADDRESS KIND PER_SECOND NAMES SECONDS | upstream ADDRESS");
}

// limpet-cni: carries one CNI request to the agent, and its answer back to the runtime.
//
//   CNI_* variables, stdin -> request frame -> unix socket of the agent
//   stdout, exit code      <- answer frame  <-
//
// The frames are described in src/limpet/cni/frames.py. VERSION is answered here, without the agent.
// While the agent is away (restart, upgrade) we keep trying for wait_s seconds; an agent that goes
// away with our request gets it again, with the attempt counted up. Every wait has a deadline, so
// limit_s bounds the whole run. No allocation, no child, nothing written but stdout: killing us at
// any instant leaves nothing behind.

#define _GNU_SOURCE  // memmem, SOCK_CLOEXEC
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define SUPPORTED "\"0.3.0\",\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\""
#define FALLBACK_VERSION "1.0.0"  // of an answer to input that names none; old runtimes reject 1.1.0

enum {
	STDIN_MAX = 1 << 20,
	ENVIRONMENT_MAX = 256 << 10,
	ANSWER_MAX = 1 << 20,
	CONF_MAX = 4096,
	REQUEST_HEADER = 10,  // magic, length, kind, attempt
	ANSWER_HEADER = 12,   // magic, exit code, length
	PIPE_CHUNK = 4096,    // poll() promises that this much can be written to a pipe: PIPE_BUF
	HASTY_MS = 1000,      // patience with stdin where its content is not needed
	STATUS_MS = 15000,    // longest patience of STATUS: the kubelet asks 5 s after an answer, and takes
	                      // a runtime that has given none for 30 s for dead
	MOST_SECONDS = 86400,
};

// CNI error codes. Source: CNI SPEC.md 1.1.0, section 'Error'.
enum {
	BAD_ENVIRONMENT = 4,
	IO_FAILURE = 5,
	DECODE_FAILURE = 6,
	BAD_CONFIG = 7,
	TRY_AGAIN_LATER = 11,
	NOT_AVAILABLE = 50,
};

extern char **environ;

static int64_t limit_at;  // when all must be over, in now_ms() time
static int64_t limit_ms = 90 * 1000;
static int64_t wait_ms = 10 * 1000;
static struct sockaddr_un agent = {.sun_family = AF_UNIX, .sun_path = "/run/limpet/agent.sock"};

// Request frame: header, variables, a NUL, then stdin and room to see that it is too long.
static char request[REQUEST_HEADER + ENVIRONMENT_MAX + 1 + STDIN_MAX + 1];
static size_t stdin_begin = REQUEST_HEADER;
static size_t stdin_length;
static bool stdin_done;  // read, or not to be waited for again
static unsigned char answer[ANSWER_MAX];

static int64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int64_t earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

// True when `fd` is ready for `events` (or broken, which the next call on it tells).
static bool wait_for(int fd, short events, int64_t deadline)
{
	for (;;) {
		struct pollfd poll_fd = {.fd = fd, .events = events};
		int64_t left = deadline - now_ms();
		if (left <= 0)
			return false;
		int ready = poll(&poll_fd, 1, (int)earlier(left, 1000000));
		if (ready > 0)
			return true;
		if (ready < 0 && errno != EINTR)
			return false;
	}
}

static bool write_stdout(const void *data, size_t length, int64_t deadline)
{
	const char *at = data;
	while (length > 0) {
		if (!wait_for(STDOUT_FILENO, POLLOUT, deadline))
			return false;
		ssize_t wrote = write(STDOUT_FILENO, at, length < PIPE_CHUNK ? length : PIPE_CHUNK);
		if (wrote < 0 && errno != EINTR && errno != EAGAIN)
			return false;
		if (wrote > 0) {
			at += wrote;
			length -= (size_t)wrote;
		}
	}
	return true;
}

// stdin up to its end, as far as there is room for it; 0 or an errno (ETIMEDOUT: no end in time).
static int read_stdin(int64_t deadline)
{
	const size_t room = STDIN_MAX + 1;
	stdin_done = true;
	while (stdin_length < room) {
		if (!wait_for(STDIN_FILENO, POLLIN, deadline))
			return ETIMEDOUT;
		ssize_t got = read(STDIN_FILENO, request + stdin_begin + stdin_length, room - stdin_length);
		if (got == 0)
			return 0;
		if (got > 0)
			stdin_length += (size_t)got;
		else if (errno != EINTR && errno != EAGAIN)
			return errno;
	}
	return 0;
}

static bool is_version_char(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
	       c == '-' || c == '+';
}

// The value of the first "cniVersion" in stdin that looks like a version, without parsing the rest.
static void find_version(char version[32])
{
	static const char key[] = "\"cniVersion\"";
	const char *at = request + stdin_begin;
	const char *end = at + stdin_length;
	while ((at = memmem(at, (size_t)(end - at), key, sizeof key - 1)) != NULL) {
		at += sizeof key - 1;
		const char *c = at;
		while (c < end && (*c == ' ' || *c == '\t' || *c == '\r' || *c == '\n' || *c == ':'))
			c++;
		size_t length = 0;
		if (c < end && *c == '"') {
			for (c++; c < end && length < 31 && is_version_char(*c); c++)
				version[length++] = *c;
		}
		if (length > 0 && c < end && *c == '"') {
			version[length] = '\0';
			return;
		}
	}
	strcpy(version, FALLBACK_VERSION);
}

struct text {
	char bytes[4096];
	size_t length;
};

static void append(struct text *text, const char *piece)
{
	size_t length = strlen(piece);
	if (length < sizeof text->bytes - text->length) {
		memcpy(text->bytes + text->length, piece, length);
		text->length += length;
	}
}

// As a JSON string. What is not plain ASCII is escaped byte by byte: valid whatever it holds.
static void append_json(struct text *text, const char *value)
{
	append(text, "\"");
	for (; *value != '\0'; value++) {
		unsigned char c = (unsigned char)*value;
		char piece[8] = {(char)c, '\0'};
		if (c < 0x20 || c > 0x7e || c == '"' || c == '\\')
			snprintf(piece, sizeof piece, "\\u%04x", (unsigned)c);
		append(text, piece);
	}
	append(text, "\"");
}

// Ends the run with a CNI error. Both texts are cut to what fits in `text` even when all is escaped.
__attribute__((format(printf, 3, 4))) _Noreturn static void fail(int code, const char *details,
                                                                 const char *format, ...)
{
	struct text text = {.length = 0};
	char version[32], number[16], msg[320];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(msg, sizeof msg, format, arguments);
	va_end(arguments);
	if (!stdin_done)
		read_stdin(now_ms() + HASTY_MS);
	find_version(version);
	snprintf(number, sizeof number, "%d", code);
	append(&text, "{\"cniVersion\":");
	append_json(&text, version);
	append(&text, ",\"code\":");
	append(&text, number);
	append(&text, ",\"msg\":");
	append_json(&text, msg);
	append(&text, ",\"details\":");
	append_json(&text, details);
	append(&text, "}\n");
	// With the limit used up, the error may still take a moment to be read.
	write_stdout(text.bytes, text.length, now_ms() + HASTY_MS);
	exit(1);
}

static void answer_version(void)
{
	struct text text = {.length = 0};
	char version[32];
	read_stdin(now_ms() + HASTY_MS);
	find_version(version);
	append(&text, "{\"cniVersion\":");
	append_json(&text, version);
	append(&text, ",\"supportedVersions\":[" SUPPORTED "]}\n");
	exit(write_stdout(text.bytes, text.length, now_ms() + HASTY_MS) ? 0 : 1);
}

// "12" or "0.25" seconds in milliseconds, -1 if it is nothing of the kind.
static int64_t parse_seconds(const char *text)
{
	int64_t ms = 0, unit = 1000;
	bool digits = false;
	for (; *text >= '0' && *text <= '9' && ms <= MOST_SECONDS * 1000LL; text++, digits = true)
		ms = ms * 10 + (*text - '0') * 1000;
	if (*text == '.')
		for (text++; *text >= '0' && *text <= '9'; text++, digits = true)
			ms += (*text - '0') * (unit /= 10);
	return digits && *text == '\0' && ms <= MOST_SECONDS * 1000LL ? ms : -1;
}

static void set_socket(const char *path, int code, const char *source)
{
	if (path[0] != '/' || strlen(path) >= sizeof agent.sun_path)
		fail(code, "an absolute path of at most 107 bytes is needed",
		     "%s: \"%.150s\" cannot be the agent's socket", source, path);
	memset(agent.sun_path, 0, sizeof agent.sun_path);
	memcpy(agent.sun_path, path, strlen(path));
}

static void set_seconds(int64_t *setting, const char *value, int code, const char *source)
{
	int64_t ms = parse_seconds(value);
	if (ms < 0)
		fail(code, "seconds are needed, 0 to 86400, like 20 or 0.5",
		     "%s: \"%.40s\" is not a number of seconds", source, value);
	*setting = ms;
}

static char *trim(char *text)
{
	text += strspn(text, " \t\r");
	for (size_t end = strlen(text); end > 0 && strchr(" \t\r", text[end - 1]) != NULL; end--)
		text[end - 1] = '\0';
	return text;
}

static void apply_conf_line(char *line, const char *path, int number)
{
	char source[160];
	char *value = strchr(line, '=');
	if (value == NULL)
		return;
	*value++ = '\0';
	line = trim(line);
	value = trim(value);
	snprintf(source, sizeof source, "%.100s line %d: %.20s", path, number, line);
	if (strcmp(line, "socket") == 0)
		set_socket(value, BAD_CONFIG, source);
	else if (strcmp(line, "wait_s") == 0)
		set_seconds(&wait_ms, value, BAD_CONFIG, source);
	else if (strcmp(line, "limit_s") == 0)
		set_seconds(&limit_ms, value, BAD_CONFIG, source);
}

// Lines `key=value`; comments, empty lines and keys of other releases are passed over.
static void read_conf(const char *path, bool must_exist)
{
	static char conf[CONF_MAX + 1];
	size_t length = 0;
	ssize_t got = 0;
	// Non-blocking: a FIFO must not hold us up.
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 && errno == ENOENT && !must_exist)
		return;
	while (fd >= 0 && (got = read(fd, conf + length, sizeof conf - length)) > 0)
		length += (size_t)got;
	if (fd < 0 || got < 0)
		fail(IO_FAILURE, "remove the file or make it readable", "read settings %.150s: %s", path,
		     strerror(errno));
	close(fd);
	if (length > CONF_MAX)
		fail(BAD_CONFIG, "the settings are socket=, wait_s= and limit_s=, one a line",
		     "read settings %.150s: longer than 4096 bytes", path);
	conf[length] = '\0';
	int number = 0;
	for (char *line = conf, *next; line != NULL; line = next) {
		next = strchr(line, '\n');
		if (next != NULL)
			*next++ = '\0';
		number++;
		if (*trim(line) != '#')
			apply_conf_line(line, path, number);
	}
}

static void read_settings(int64_t started, bool is_status)
{
	const char *conf = getenv("LIMPET_SHIM_CONF");
	const char *path = getenv("LIMPET_SOCKET");
	const char *wait = getenv("LIMPET_WAIT_S");
	bool named = conf != NULL && *conf != '\0';
	read_conf(named ? conf : "/etc/limpet/shim.conf", named);
	if (path != NULL && *path != '\0')
		set_socket(path, BAD_ENVIRONMENT, "LIMPET_SOCKET");
	if (wait != NULL && *wait != '\0')
		set_seconds(&wait_ms, wait, BAD_ENVIRONMENT, "LIMPET_WAIT_S");
	if (is_status)
		wait_ms = earlier(wait_ms, STATUS_MS);
	limit_at = started + limit_ms;
}

static void put_u32(char *at, size_t value)
{
	for (int i = 0; i < 4; i++)
		at[i] = (char)(value >> (8 * i) & 0xff);
}

static uint32_t get_u32(const unsigned char *at)
{
	return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void frame_environment(void)
{
	for (char **variable = environ; *variable != NULL; variable++) {
		if (strncmp(*variable, "CNI_", 4) != 0 || strchr(*variable, '=') == NULL)
			continue;
		size_t length = strlen(*variable) + 1;
		if (length > REQUEST_HEADER + ENVIRONMENT_MAX - stdin_begin)
			fail(BAD_ENVIRONMENT, "look at CNI_ARGS and CNI_PATH",
			     "the CNI_ variables are longer than 256 KiB together");
		memcpy(request + stdin_begin, *variable, length);
		stdin_begin += length;
	}
	request[stdin_begin++] = '\0';
}

static void frame_stdin(void)
{
	int problem = read_stdin(limit_at);
	if (problem == ETIMEDOUT)
		fail(IO_FAILURE, "the runtime must close stdin after the network configuration",
		     "read network configuration from stdin: no end within %lld s",
		     (long long)(limit_ms / 1000));
	if (problem != 0)
		fail(IO_FAILURE, "", "read network configuration from stdin: %s", strerror(problem));
	if (stdin_length > STDIN_MAX)
		fail(DECODE_FAILURE, "", "network configuration on stdin is longer than 1 MiB");
	memcpy(request, "LMP1", 4);
	put_u32(request + 4, stdin_begin + stdin_length - 8);
	request[8] = 'C';
}

// A connection to the agent, or -1 with errno. Blocks while the agent's backlog is full.
static int connect_agent(int64_t deadline)
{
	int64_t left = deadline - now_ms();
	if (left < 1)
		left = 1;  // 0 would be for ever
	struct timeval timeout = {.tv_sec = left / 1000, .tv_usec = left % 1000 * 1000};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) == 0 &&
	    connect(fd, (const struct sockaddr *)&agent, sizeof agent) == 0 &&
	    fcntl(fd, F_SETFL, O_NONBLOCK) == 0)
		return fd;
	int problem = errno;
	close(fd);
	errno = problem;
	return -1;
}

static bool agent_may_come(int problem)
{
	switch (problem) {
	case ENOENT:
	case ECONNREFUSED:
	case ECONNRESET:
	case EAGAIN:
	case EINTR:
		return true;
	default:
		return false;
	}
}

// Sends or receives exactly `length` bytes; false when the agent is gone or the limit is reached.
static bool transfer(int fd, bool out, void *data, size_t length)
{
	char *at = data;
	while (length > 0) {
		ssize_t moved = out ? send(fd, at, length, MSG_NOSIGNAL) : recv(fd, at, length, 0);
		if (moved > 0) {
			at += moved;
			length -= (size_t)moved;
		} else if (moved == 0 || (errno != EINTR && errno != EAGAIN)) {
			return false;
		} else if (!wait_for(fd, out ? POLLOUT : POLLIN, limit_at)) {
			return false;
		}
	}
	return true;
}

// Prints the agent's answer and ends the run with its exit code; returns if the agent goes away.
static void exchange(int fd)
{
	unsigned char header[ANSWER_HEADER];
	if (!transfer(fd, true, request, stdin_begin + stdin_length) ||
	    !transfer(fd, false, header, sizeof header))
		return;
	uint32_t code = get_u32(header + 4), length = get_u32(header + 8);
	if (memcmp(header, "LMP1", 4) != 0 || length > ANSWER_MAX)
		fail(IO_FAILURE, "limpet-cni and the agent must be of the same release: run limpet install",
		     "what listens on %s does not answer as the limpet agent does", agent.sun_path);
	if (!transfer(fd, false, answer, length))
		return;
	bool written = write_stdout(answer, length, limit_at);
	exit(!written ? 1 : code > 255 ? 255 : (int)code);
}

_Noreturn static void ask_agent(bool is_status)
{
	const int code = is_status ? NOT_AVAILABLE : TRY_AGAIN_LATER;
	const char *advice = "see: systemctl status limpet-agent; journalctl -u limpet-agent";
	unsigned attempt = 0;
	int64_t away_ms = 0;  // without a connection, all together
	for (;;) {
		int64_t since = now_ms();
		int fd = connect_agent(earlier(limit_at, since + wait_ms - away_ms));
		int problem = errno;
		if (fd >= 0) {
			request[9] = (char)(attempt < 255 ? attempt : 255);
			exchange(fd);
			close(fd);
			since = now_ms();
			if (since >= limit_at)
				fail(code, advice, "the limpet agent on %s did not answer within %lld s",
				     agent.sun_path, (long long)(limit_ms / 1000));
			attempt++;
			problem = ECONNRESET;
		} else if (!agent_may_come(problem)) {
			fail(IO_FAILURE, advice, "connect to the limpet agent on %s: %s", agent.sun_path,
			     strerror(problem));
		}
		// Many of us may wait for an agent that starts: ask less often as time goes by.
		int64_t pause = earlier(10 + away_ms / 50, 50);
		int64_t left = earlier(wait_ms - away_ms, limit_at - now_ms());
		poll(NULL, 0, left > 0 ? (int)earlier(pause, left) : 0);
		away_ms += now_ms() - since;
		if (away_ms >= wait_ms || now_ms() >= limit_at)
			fail(code, advice, "the limpet agent cannot be reached on %s: %s (tried for %lld.%lld s)",
			     agent.sun_path, strerror(problem), (long long)(away_ms / 1000),
			     (long long)(away_ms % 1000 / 100));
	}
}

int main(void)
{
	const int64_t started = now_ms();
	const char *command = getenv("CNI_COMMAND");
	limit_at = started + limit_ms;
	signal(SIGPIPE, SIG_IGN);
	// A closed standard stream would give its number to the socket.
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0)
			return 1;
	if (command == NULL || *command == '\0') {
		if (!isatty(STDIN_FILENO))
			fail(BAD_ENVIRONMENT, "", "CNI_COMMAND is missing");
		fputs("limpet: a CNI plugin (0.3.0 to 1.1.0) that container runtimes call, not people\n", stderr);
		return 0;
	}
	if (strcmp(command, "VERSION") == 0)
		answer_version();
	if (strcmp(command, "ADD") != 0 && strcmp(command, "DEL") != 0 &&
	    strcmp(command, "CHECK") != 0 && strcmp(command, "GC") != 0 && strcmp(command, "STATUS") != 0)
		fail(BAD_ENVIRONMENT, "limpet serves ADD, DEL, CHECK, GC, STATUS and VERSION",
		     "CNI_COMMAND: \"%.100s\" is not a CNI command", command);
	const bool is_status = strcmp(command, "STATUS") == 0;
	read_settings(started, is_status);
	frame_environment();
	frame_stdin();
	ask_agent(is_status);
}

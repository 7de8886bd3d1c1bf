// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Services at the socket: who asks for a Service's address is connected to one of its endpoints, and
 * is told that it talks with the Service. Packets carry the endpoint's address from the start, so
 * nothing on their way has to translate them.
 *
 * What is not known here (another network namespace, an unknown address, a Service without
 * endpoints, a map that is being filled) is left alone: nftables serves it. The maps are written by
 * src/limpet/datapath/services/sockets; layouts are those of layout.py there. IPv4 stands in the
 * maps as it does in IPv6 (::ffff:a.b.c.d), since sockets of IPv6 ask for it like that.
 *
 * Everything here is of the kernel's stable interface (struct bpf_sock_addr and helpers), so one
 * object fits all kernels from 5.14 on, and needs no relocation by their types.
 */
#include <linux/bpf.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

struct address {
	__be32 words[4];
};

struct service {
	struct address address;
	__u8 protocol;
	__u8 unused[3];
	__be16 port;
	__u16 unused_too;
};

struct target {
	struct address address;
	__be16 port;
	__u16 unused;
};

/* As many slots stand in the frontend itself, which spares looking them up; a power of two. */
enum { FEW = 8 };

struct frontend {
	__u32 slots;
	__u32 affinity_s; /* 0: a client need not stay with its endpoint */
	__u32 flags;
	struct target few[FEW];
};

/* Its sockets of UDP that are connected are left to nftables: see `connect_to`. */
enum { NOT_CONNECTED = 1 };

struct slot {
	struct service service;
	__u32 number;
};

struct member {
	struct service service;
	struct target target;
};

struct client {
	__u64 netns; /* a pod is one client, the node's own processes are another */
	struct service service;
};

struct kept {
	struct target target;
	__u32 unused;
	__u64 until_ns;
};

struct flow {
	__u64 socket;
	struct service service;
};

struct answer {
	__u64 socket;
	struct target target;
	__u32 unused;
};

/* As long as nftables would know a flow that is not used, by nf_conntrack_udp_timeout_stream. */
#define AWAITED_NS (120ULL * 1000000000)

struct peer {
	struct target asked;
	struct target target;
};

enum { NODE = 1, POD = 2 };

/* A socket of UDP; the kernel calls it TCP_ESTABLISHED. */
enum { IS_CONNECTED = 1 };

/* Written by the agent. Not reserved in advance: most nodes have few Services. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 12);
	__type(key, __u64); /* a network namespace's cookie */
	__type(value, __u32);
} namespaces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 16);
	__type(key, struct service);
	__type(value, struct frontend);
} frontends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 18);
	__type(key, struct slot);
	__type(value, struct target);
} slots SEC(".maps");

/* Endpoints that a client, or a flow of UDP, may be kept with. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 18);
	__type(key, struct member);
	__type(value, __u32);
} members SEC(".maps");

/* Written here. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, struct client);
	__type(value, struct kept);
} clients SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, struct flow);
	__type(value, struct target);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, struct answer);
	__type(value, struct kept); /* who was asked last by who answers there */
} awaited SEC(".maps");

/*
 * Sockets that are connected, until they are closed: the agent counts them, and ends those whose
 * endpoint is gone. A socket's cookie says its set, in which its place is any; whose set is full is
 * left to nftables. Cookies are given in order and stand apart from what is noted of them, so to
 * find room, or that a socket which is closed is not there, is a look at a line of the cache that
 * was fetched before: half of what a hash costs. Storage with the socket itself
 * (BPF_MAP_TYPE_SK_STORAGE) costs four times as much, and sock_diag tells it of TCP only.
 */
enum { PLACES = 8, SETS = 1 << 13, LOCKS = 1 << 8 };

struct set {
	__u64 cookies[PLACES]; /* 0: nobody's */
};

struct lock {
	struct bpf_spin_lock lock;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* the agent reads it, and gives back what nobody has any more */
	__uint(max_entries, SETS);
	__type(key, __u32);
	__type(value, struct set);
} connected SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SETS * PLACES);
	__type(key, __u32);
	__type(value, struct peer);
} peers SEC(".maps");

/* Held while a place is taken. Not cmpxchg, which JITs of 64-bit ARM have from Linux 5.18 on. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LOCKS);
	__type(key, __u32);
	__type(value, struct lock);
} locks SEC(".maps");

static __always_inline bool is_same(const struct target *one, const struct target *other)
{
	return one->address.words[0] == other->address.words[0] &&
	       one->address.words[1] == other->address.words[1] &&
	       one->address.words[2] == other->address.words[2] &&
	       one->address.words[3] == other->address.words[3] && one->port == other->port;
}

/* The address that the program was called for, as it stands in maps. */
static __always_inline void read_address(struct bpf_sock_addr *ctx, bool is_ipv4, struct target *found)
{
	if (is_ipv4) {
		found->address.words[0] = 0;
		found->address.words[1] = 0;
		found->address.words[2] = bpf_htonl(0xffff);
		found->address.words[3] = ctx->user_ip4;
	} else {
		found->address.words[0] = ctx->user_ip6[0];
		found->address.words[1] = ctx->user_ip6[1];
		found->address.words[2] = ctx->user_ip6[2];
		found->address.words[3] = ctx->user_ip6[3];
	}
	found->port = ctx->user_port;
	found->unused = 0;
}

static __always_inline void write_address(struct bpf_sock_addr *ctx, bool is_ipv4, const struct target *wanted)
{
	if (is_ipv4) {
		ctx->user_ip4 = wanted->address.words[3];
	} else {
		ctx->user_ip6[0] = wanted->address.words[0];
		ctx->user_ip6[1] = wanted->address.words[1];
		ctx->user_ip6[2] = wanted->address.words[2];
		ctx->user_ip6[3] = wanted->address.words[3];
	}
	ctx->user_port = wanted->port;
}

/* It sends from an address of its own choice, which others' pods may not know: see `may_ask`. */
static __always_inline bool is_bound(struct bpf_sock *sk)
{
	return sk->src_ip4 || sk->src_ip6[0] || sk->src_ip6[1] || sk->src_ip6[2] || sk->src_ip6[3];
}

/*
 * Pods of Limpet and the node itself may; another network namespace may use the address for
 * something else. A process of the node that insists on its source needs it translated, too,
 * and that is done to packets.
 */
static __always_inline bool may_ask(struct bpf_sock_addr *ctx, __u64 netns)
{
	__u32 *kind = bpf_map_lookup_elem(&namespaces, &netns);
	struct bpf_sock *sk = ctx->sk;

	if (!kind || !sk)
		return false;
	return *kind != NODE || !is_bound(sk);
}

static __always_inline bool is_member(const struct service *service, const struct target *target)
{
	struct member key = { .service = *service, .target = *target };

	return bpf_map_lookup_elem(&members, &key) != NULL;
}

static __always_inline bool draw(const struct service *service, const struct frontend *frontend,
				 struct target *found)
{
	__u32 count = frontend->slots, number = count > 1 ? bpf_get_prandom_u32() % count : 0;
	const struct target *target;
	struct slot key;

	if (count <= FEW) {
		barrier_var(number); /* the verifier knows no remainders, and clang leaves the mask out */
		target = &frontend->few[number & (FEW - 1)];
	} else {
		key.service = *service;
		key.number = number;
		target = bpf_map_lookup_elem(&slots, &key);
	}
	if (!target)
		return false;
	*found = *target;
	return true;
}

/* An endpoint for who begins to ask; false: it is not for us. */
static __always_inline bool choose(struct bpf_sock_addr *ctx, const struct service *service, __u32 unless,
				   struct target *found)
{
	__u64 netns, now_ns;
	struct frontend *frontend;
	struct client client;
	struct kept *kept, fresh = {};

	frontend = bpf_map_lookup_elem(&frontends, service);
	if (!frontend || !frontend->slots || frontend->flags & unless)
		return false;
	netns = bpf_get_netns_cookie(ctx);
	if (!may_ask(ctx, netns))
		return false;
	if (!frontend->affinity_s)
		return draw(service, frontend, found);
	client.netns = netns;
	client.service = *service;
	now_ns = bpf_ktime_get_boot_ns();
	fresh.until_ns = now_ns + (__u64)frontend->affinity_s * 1000000000;
	kept = bpf_map_lookup_elem(&clients, &client);
	if (kept && kept->until_ns > now_ns) {
		*found = kept->target;
		if (is_member(service, found)) {
			kept->until_ns = fresh.until_ns;
			return true;
		}
	}
	if (!draw(service, frontend, found))
		return false;
	fresh.target = *found;
	bpf_map_update_elem(&clients, &client, &fresh, BPF_ANY);
	return true;
}

/* The set of that socket, and its number. */
static __always_inline struct set *set_of(__u64 cookie, __u32 *number)
{
	*number = cookie & (SETS - 1);
	return bpf_map_lookup_elem(&connected, number);
}

static __always_inline struct peer *peer_at(__u32 set, __u32 place)
{
	__u32 number = set * PLACES + place;

	return bpf_map_lookup_elem(&peers, &number);
}

/* What is noted of a socket; NULL: nothing. Only calls about that socket change its place. */
static __always_inline struct peer *noted(__u64 cookie)
{
	__u32 number, place;
	struct set *set = set_of(cookie, &number);

	if (!set)
		return NULL;
	for (place = 0; place < PLACES; place++) {
		if (set->cookies[place] == cookie)
			return peer_at(number, place);
	}
	return NULL;
}

/* A place for it, which may be what it has; NULL: there is none. */
static __always_inline struct peer *place_for(__u64 cookie)
{
	struct peer *found = noted(cookie);
	__u32 number, place, key, taken = PLACES;
	struct lock *lock;
	struct set *set;

	if (found)
		return found;
	set = set_of(cookie, &number);
	key = number & (LOCKS - 1);
	lock = bpf_map_lookup_elem(&locks, &key);
	if (!set || !lock)
		return NULL;
	bpf_spin_lock(&lock->lock);
	for (place = 0; place < PLACES; place++) {
		if (!set->cookies[place]) {
			set->cookies[place] = cookie;
			taken = place;
			break;
		}
	}
	bpf_spin_unlock(&lock->lock);
	return taken < PLACES ? peer_at(number, taken) : NULL;
}

static __always_inline void forget(__u64 cookie)
{
	__u32 number, place;
	struct set *set = set_of(cookie, &number);

	if (!set)
		return;
	for (place = 0; place < PLACES; place++) {
		if (set->cookies[place] == cookie)
			set->cookies[place] = 0;
	}
}

static __always_inline struct service service_of(struct bpf_sock_addr *ctx, const struct target *asked)
{
	struct service service = {
		.address = asked->address,
		.protocol = ctx->protocol,
		.port = asked->port,
	};

	return service;
}

/*
 * A socket that is connected asks here once and never again. When its endpoint answers no more the
 * agent ends it, so that its owner makes another; kernels that cannot do that have NOT_CONNECTED.
 */
static __always_inline void connect_to(struct bpf_sock_addr *ctx, bool is_ipv4)
{
	struct service service;
	struct peer peer, *place;

	if (!ctx->sk || (ctx->protocol != IPPROTO_TCP && ctx->protocol != IPPROTO_UDP))
		return;
	read_address(ctx, is_ipv4, &peer.asked);
	service = service_of(ctx, &peer.asked);
	if (choose(ctx, &service, NOT_CONNECTED, &peer.target)) {
		place = place_for(bpf_get_socket_cookie(ctx));
		if (!place)
			return;
		*place = peer;
		write_address(ctx, is_ipv4, &peer.target);
	} else if (ctx->protocol == IPPROTO_UDP) {
		/* It may have been connected to a Service before. Of TCP that is rare, and who looks at a
		 * socket compares its peer with what stands here. */
		forget(bpf_get_socket_cookie(ctx));
	}
}

/* Datagrams of one socket to one Service go to one endpoint, as long as that is one. */
static __always_inline void send_to(struct bpf_sock_addr *ctx, bool is_ipv4)
{
	struct target asked, found, *held;
	struct flow flow;
	struct answer answer = {};
	struct kept *told, fresh = {};
	__u64 cookie;
	bool is_new = true;

	if (ctx->protocol != IPPROTO_UDP)
		return;
	cookie = bpf_get_socket_cookie(ctx);
	read_address(ctx, is_ipv4, &asked);
	flow.socket = cookie;
	flow.service = service_of(ctx, &asked);
	held = bpf_map_lookup_elem(&flows, &flow);
	if (held) {
		found = *held;
		is_new = !is_member(&flow.service, &found);
	}
	if (is_new) {
		if (!choose(ctx, &flow.service, 0, &found)) {
			/* It may be an endpoint itself, whose answers are its own from now on. */
			answer.socket = cookie;
			answer.target = asked;
			if (bpf_map_lookup_elem(&awaited, &answer))
				bpf_map_delete_elem(&awaited, &answer);
			return;
		}
		bpf_map_update_elem(&flows, &flow, &found, BPF_ANY);
	}
	answer.socket = cookie;
	answer.target = found;
	fresh.until_ns = bpf_ktime_get_coarse_ns() + AWAITED_NS;
	told = bpf_map_lookup_elem(&awaited, &answer);
	if (told && is_same(&told->target, &asked)) {
		told->until_ns = fresh.until_ns;
	} else {
		fresh.target = asked;
		bpf_map_update_elem(&awaited, &answer, &fresh, BPF_ANY);
	}
	write_address(ctx, is_ipv4, &found);
}

/*
 * Puts whom the socket asked in place of who answers. The address is written at one place: clang
 * makes two of them one by a pointer into the context, which the verifier takes for no context.
 */
static __always_inline void name_peer(struct bpf_sock_addr *ctx, bool is_ipv4, bool is_datagram)
{
	struct answer answer = {};
	struct bpf_sock *sk = ctx->sk;
	struct target wanted;
	struct kept *asked;
	struct peer *peer = NULL;
	__u64 now_ns;

	if (!sk)
		return;
	read_address(ctx, is_ipv4, &answer.target);
	answer.socket = bpf_get_socket_cookie(ctx);
	if (!is_datagram || sk->state == IS_CONNECTED)
		peer = noted(answer.socket);
	if (peer && is_same(&answer.target, &peer->target)) {
		wanted = peer->asked;
	} else {
		if (!is_datagram)
			return;
		asked = bpf_map_lookup_elem(&awaited, &answer);
		now_ns = bpf_ktime_get_coarse_ns();
		if (!asked || asked->until_ns < now_ns)
			return;
		asked->until_ns = now_ns + AWAITED_NS; /* a stream may be asked for once */
		wanted = asked->target;
	}
	write_address(ctx, is_ipv4, &wanted);
}

SEC("cgroup/connect4")
int limpet_connect4(struct bpf_sock_addr *ctx)
{
	connect_to(ctx, true);
	return 1;
}

SEC("cgroup/connect6")
int limpet_connect6(struct bpf_sock_addr *ctx)
{
	connect_to(ctx, false);
	return 1;
}

SEC("cgroup/sendmsg4")
int limpet_sendmsg4(struct bpf_sock_addr *ctx)
{
	send_to(ctx, true);
	return 1;
}

SEC("cgroup/sendmsg6")
int limpet_sendmsg6(struct bpf_sock_addr *ctx)
{
	send_to(ctx, false);
	return 1;
}

SEC("cgroup/recvmsg4")
int limpet_recvmsg4(struct bpf_sock_addr *ctx)
{
	name_peer(ctx, true, true);
	return 1;
}

SEC("cgroup/recvmsg6")
int limpet_recvmsg6(struct bpf_sock_addr *ctx)
{
	name_peer(ctx, false, true);
	return 1;
}

SEC("cgroup/getpeername4")
int limpet_peer4(struct bpf_sock_addr *ctx)
{
	name_peer(ctx, true, false);
	return 1;
}

SEC("cgroup/getpeername6")
int limpet_peer6(struct bpf_sock_addr *ctx)
{
	name_peer(ctx, false, false);
	return 1;
}

SEC("cgroup/sock_release")
int limpet_release(struct bpf_sock *sk)
{
	if (sk->protocol == IPPROTO_TCP || sk->protocol == IPPROTO_UDP)
		forget(bpf_get_socket_cookie(sk));
	return 1;
}

// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The least that an eBPF program needs to let packets go to some prefixes of IPv4 only: one look in
 * a longest-prefix trie, for each packet. To be compared with; nothing of Limpet uses it.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

struct prefix {
	__u32 length;
	__be32 address;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2000000);
	__type(key, struct prefix);
	__type(value, __u32);
} allowed SEC(".maps");

static __always_inline int is_allowed(__be32 address)
{
	struct prefix key = { .length = 32, .address = address };

	return bpf_map_lookup_elem(&allowed, &key) != 0;
}

SEC("tc")
int from_pod(struct __sk_buff *skb)
{
	void *end = (void *)(long)skb->data_end;
	struct iphdr *ip = (void *)(long)skb->data + sizeof(struct ethhdr);

	if (skb->protocol != bpf_htons(ETH_P_IP))
		return TC_ACT_OK;
	if ((void *)(ip + 1) > end)
		return TC_ACT_SHOT;
	return is_allowed(ip->daddr) ? TC_ACT_OK : TC_ACT_SHOT;
}

SEC("cgroup_skb/egress")
int from_cgroup(struct __sk_buff *skb)
{
	void *end = (void *)(long)skb->data_end;
	struct iphdr *ip = (void *)(long)skb->data;

	if (skb->protocol != bpf_htons(ETH_P_IP))
		return 1;
	if ((void *)(ip + 1) > end)
		return 0;
	return is_allowed(ip->daddr);
}

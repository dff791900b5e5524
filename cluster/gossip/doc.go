// Package gossip discovers the nodes and their state with hashicorp/memberlist:
// quickly, but without guarantees.
//
// Its reports are hints: no node loses or gains ownership by gossip alone.
// [Open] starts this node's part in the gossip, [Gossip.Members] lists the
// members as this node sees them, [Gossip.Changed] signals changes of that
// list, and [Gossip.Update] changes this node's own description.
//
// A member is identified by its node ID, which is stored in its data directory.
// So a node that restarts with another address is the same member, once the
// other nodes have seen the old process fail (some seconds) and
// [Config.ReclaimAfter] has passed. Two live processes with one ID mean that a
// data directory was copied: the other nodes keep the one they knew first and
// refuse the second, and both sides log it.
//
// In addition, nodes exchange [News], which is opaque to this package: in small
// packets soon after it arises, and as a whole with a node that joins.
//
// Members excludes nodes of another cluster or region, and those that
// [Config.Accept] refuses.
//
// With [Config.WAN], the members are the entry nodes of all regions. Then a
// member may be of any region and cluster, but two clusters that use one
// region's name are kept apart, and so are nodes of one cluster that use two
// names. Most intervals are longer, and packets have another label, so that the
// pools never mix.
//
// memberlist forgets dead members, so the two sides of a long cut would never
// meet again. This package lists members that failed or left until
// [Gossip.Forget], and tries to join seeds and failed members every few seconds
// forever.
//
// Caveats:
//
//   - memberlist does not report suspicions: a member is [Alive] until it is
//     [Failed].
//   - memberlist 0.6 trusts its input: one message may exhaust memory or end
//     the process. So each message is decrypted and inspected before memberlist
//     gets it. Messages that no node sends are dropped, counted
//     ([Gossip.Refused]) and logged. That keeps a node alive, but without
//     [Config.Keyring] anyone who reaches its port may still join, or claim
//     that other nodes are gone. The label on each packet keeps out other
//     software that gossips on the same port, not an attacker.
//   - memberlist's last probes outlive Close by up to two seconds. In a
//     testing/synctest bubble, whose clock stops when the test returns, sleep
//     after Close.
//
// The package runs three goroutines: one announces changes, one joins seeds and
// failed members (eight at once), and one forwards packets and accepted
// connections to memberlist. Close waits for them.
//
// # Files
//
// From the bottom up:
//
//   - member.go, metadata.go, table.go: a member, its description as bytes, and
//     all that are known;
//   - config.go, log.go: what a node is given, and what is logged seldom;
//   - msgpack.go, inspect.go, transport.go: messages are decoded, inspected,
//     and only then given to memberlist;
//   - delegate.go, news.go: memberlist's callbacks about who may be a member,
//     who came and who went, and about the application's news;
//   - rejoin.go: seeds and failed members are joined again and again;
//   - gossip.go: a node's part in the gossip, its start and its end.
package gossip

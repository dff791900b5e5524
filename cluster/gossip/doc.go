// Package gossip finds out, quickly but roughly, which nodes there are, with hashicorp/memberlist.
//
// What it reports is a hint: no node loses or gains ownership by gossip alone. [Open] starts a node's part in it,
// [Gossip.Members] lists the members as this node sees them, [Gossip.Changed] says when to look again, and
// [Gossip.Update] changes what this node tells about itself.
//
// A member is identified by its node ID, which lives in its data directory: a restart with another address is the same
// member, once the others have seen the old process fail (some seconds) and [Config.ReclaimAfter] has passed. Two living
// processes with one ID mean a copied data directory: the others keep the one they knew first and refuse the other, and
// both sides log it.
//
// In addition, nodes exchange [News], whose content this package does not know: in small packets as it comes up, and in
// whole with a node that joins.
//
// Members of another cluster, of another region, and those that [Config.Accept] refuses, are kept out of Members.
//
// With [Config.WAN], the members are the entry nodes of all regions. Then a member may be of any region and cluster, but
// two clusters that use one region name are kept apart, and so are the parts of a cluster that uses two. All intervals
// are longer, and packets carry another label, so that the pools never mix.
//
// memberlist forgets dead members, so a long cut would never heal on its own. This package lists members that failed or
// left until [Gossip.Forget], and keeps trying to join seeds and failed members every few seconds for ever.
//
// Caveats:
//
//   - memberlist tells nobody when it merely suspects a member, so [Suspect] is not used: a member is [Alive] until it is
//     [Failed].
//   - memberlist 0.6 trusts what it reads: one message may exhaust memory or end the process. So each message is
//     decrypted and inspected before memberlist gets it; messages that no node sends are dropped, counted
//     ([Gossip.Refused]) and logged. That keeps a node alive, but without [Config.Keyring] anyone who reaches its port
//     may still join, or claim that others are gone. The label on each packet keeps out other software that gossips on
//     the same port, not an attacker.
//   - memberlist's last probes outlive Close by up to two seconds. In a testing/synctest bubble, whose clock stops when
//     the test returns, sleep after Close.
//
// The package runs goroutines of its own: one announces changes, one joins seeds and failed members (eight at once), and
// one passes packets and accepted connections on. Close waits for them.
package gossip

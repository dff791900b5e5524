// Package gossip tells quickly and roughly which nodes there are, with hashicorp/memberlist.
//
// What it says is a hint: nobody loses or gains ownership by gossip alone. [Open] starts a node's part in it,
// [Gossip.Members] lists the members as this node sees them, [Gossip.Changed] says when to look again, and
// [Gossip.Update] changes what this node tells about itself.
//
// A member is known by its node ID, which lives in its data directory: a restart with another address is the same
// member, once the others have seen the old process fail (some seconds) and [Config.ReclaimAfter] has passed. Two
// living processes with one ID are a copied data directory: the others keep the one that they knew first and refuse
// the other, and both sides log it.
//
// Beside that, nodes tell each other [News], of which this package knows nothing: in small packets as they come, and whole to
// one that joins.
//
// Members of another cluster, of another region, and those that [Config.Accept] refuses, are kept out of Members.
//
// With [Config.WAN] the members are the entry nodes of all regions: neither region nor cluster keeps anyone out, but two
// clusters that go by the name of one region do, and so does one cluster that goes by two. Everything is slower there, and
// its packets are marked otherwise, so that the pools never mix.
//
// memberlist forgets the dead, so a long cut would never heal on its own. Here members that failed or left are
// listed until [Gossip.Forget], and seeds and failed members are joined again every few seconds for ever.
//
// Caveats:
//
//   - memberlist tells nobody when it merely suspects a member, so [Suspect] is not used: a member is [Alive] until
//     it is [Failed].
//   - memberlist 0.6 trusts what it reads: one message may exhaust memory or end the process. So each message is decrypted
//     and inspected before memberlist has it; what no node sends is thrown away, counted ([Gossip.Refused]) and logged.
//     That keeps a node alive, but without [Config.Keyring] anyone who reaches its port may still join, or say of others that
//     they are gone. The label that each packet carries keeps out other software that gossips on the same port, not an attacker.
//   - memberlist's last probes outlive Close by up to two seconds. In a testing/synctest bubble, whose clock stops
//     when the test returns, sleep after Close.
//
// Goroutines of its own: one announces changes, one joins seeds and failed members
// (eight at once), one hands packets and accepted connections on. Close waits for them.
package gossip

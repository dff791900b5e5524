// Package authority gives nodes their leave to act as owners, and takes it away: never two owners.
//
// A [Holder] runs on every node. Every [Term]/8 it asks the leader for authority, and it counts the term from when
// it *sent* the request, on a clock that goes on in suspend ([Clock]). [Holder.Valid] is what an owner looks at
// after each decision and before it answers.
//
// A [Giver] runs on every node and works while that node leads. It answers a request after an empty entry that was
// proposed later than the request arrived has committed; so a leader that was deposed without knowing it grants
// nothing. To end a node it stops answering it, waits a term and 1 % on its own clock, and only then proposes the
// entry Ended. The decisions are made by [ledger], which has no clock and no goroutine; [Giver] is a thin loop around it.
//
// Why nobody is valid when its Ended is applied: let X be valid by a grant, and let Ended{X} be proposed in the reign
// of leader L. Either L made the grant: then it was decided before L stopped answering X, X had sent the request
// before that, and L waited for a term and 1 % since. Or another leader made it: the request was sent before an empty
// entry of that leader committed, and this was before L's first entry, the reign's mark, committed; L waited for a
// term and 1 % since. An entry of L that is late, because L lost the lead and won it again without knowing, carries
// the mark of its old reign and is rejected when it is applied.
//
// Caveats: two clocks may differ in pace by 1 % and no more. A virtual machine that is paused by its host notices
// only if the host tells its guest's CLOCK_BOOTTIME.
package authority

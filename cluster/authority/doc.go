// Package authority grants nodes the authority to act as owners and takes it away again, so that a partition never has two
// owners.
//
// A [Holder] runs on every node. It asks the leader for authority every [Term]/8. The term counts from when the holder
// *sent* the request, on a clock that keeps running in suspend ([Clock]). An owner checks [Holder.Valid] before
// each decision and again before it answers.
//
// A [Giver] runs on every node and works while that node leads. It answers a request only after a majority of the voters has
// confirmed that it still led after the request arrived ([Confirmations]); so a leader that was deposed without knowing it
// grants nothing. To end a node's authority, the leader stops answering it, waits a term and 1 % on its own clock, and only
// then proposes the entry Ended. The decisions are made by [authorityLedger], which has no clock and no goroutine; [Giver] is
// a thin loop around it.
//
// Why a node is never valid when its Ended is applied: let X be valid by a grant, and let Ended{X} be proposed in the reign
// of leader L. If L made the grant, it did so before it stopped answering X, X sent the request earlier still, and L has
// since waited a term and 1 %. If another, earlier leader made it, X sent the request before a moment when that leader still
// led, hence before L was elected, hence before the mark of L's reign committed; L has since waited a term and 1 %. A later
// leader grants nothing before it has applied its own mark, and Ended{X} before that. If an entry of L is delayed because L
// lost the lead and won it again without knowing, it carries the mark of the old reign and is rejected when applied.
//
// Caveats: two clocks may differ in pace by at most 1 %. A virtual machine that its host pauses notices only if the host
// advances the guest's CLOCK_BOOTTIME.
package authority

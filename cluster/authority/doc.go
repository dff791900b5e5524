// Package authority grants nodes the authority to act as owners, and ends it,
// so that a partition never has two owners.
//
// A [Holder] runs on every node. It asks the leader for authority every
// [Validity]/8. The term counts from when the holder *sent* the request, on a
// clock that keeps running in suspend ([Clock]). An owner checks [Holder.Valid]
// before each decision and again before it answers.
//
// A [Granter] runs on every node and works while that node leads. It grants a
// request only after a majority of the voters has confirmed that it still led
// after the request arrived ([Confirmations]). So a deposed leader that does
// not know it yet grants nothing. To end a node's authority, the leader stops
// granting it requests, waits [EndingWait] ([Validity] and 1 %) by its own
// clock, and only then proposes the entry Ended. All decisions are made by
// [reignState], which has no clock and no goroutine. [Granter] is a thin loop
// around it.
//
// A leader's first entry, agreement.Reign, is its mark in the log. Its reign
// lasts until the next mark of any leader. A leader ends its own reign with a
// new mark if the last mark in the log is another's, or if a proposal or a
// confirmation fails.
//
// Why a node is never valid when its Ended is applied: let node X have
// authority from a grant, and let leader L propose Ended{X}. If L made the
// grant, it did so before it stopped granting X's requests. X sent the request
// even earlier, and L has since waited EndingWait. If an earlier leader
// made the grant, X sent the request before a moment when that leader still
// led. That was before L was elected, and so before the mark of L's reign was
// committed. L has since waited EndingWait. A later leader grants
// nothing before it has applied its own mark, and Ended{X} comes before that
// mark. If L loses the lead and wins it back without noticing, an entry delayed
// from the earlier time carries the number of the old reign, and is rejected.
//
// Caveats: two clocks may differ in pace by at most 1 %. A virtual machine that
// its host pauses notices only if the host advances the guest's CLOCK_BOOTTIME.
package authority

// Package authority grants nodes the authority to act as owners, and ends it,
// so that a partition never has two owners.
//
// A [Holder] runs on every node. It asks the leader for authority every
// [Validity]/8. A grant is valid for [Validity], counted from when the holder
// *sent* the request, on a clock that keeps running in suspend ([Clock]). An
// owner checks [Holder.Valid] before each decision and again before it answers.
//
// A [Granter] runs on every node and works while that node leads. It grants a
// request only after a majority of the voters has confirmed that it still led
// after the request arrived ([Confirmations]). So a deposed leader grants
// nothing, even before it learns that it was deposed. To end a node's
// authority, the leader first refuses the node's requests. It then waits
// [EndingWait] ([Validity] and 1 %) by its own clock, and only then proposes
// the entry EndNode. [reignState] makes all decisions. It has no clock and no
// goroutine; [Granter] is a thin loop around it.
//
// A leader's first entry, agreement.Reign, is its mark in the log. Its reign
// lasts until the next mark of any leader. A leader begins a new reign, with a
// new mark, if it finds another leader's mark to be the last one in the log, or
// if a proposal or a confirmation fails.
//
// Why no member of a ring has authority when the entry that ends it is applied:
// let X hold a grant, and let leader L propose EndNode{X}. There are three cases.
// First, L made the grant. L granted it before it began to refuse X, and X had
// sent the request before that. Since it began to refuse, L has waited
// EndingWait, so the grant has expired. Second, an earlier leader made the grant. X sent the request before a moment when that leader still led.
// That moment came before the election of L, and so before the mark of L's
// reign was committed. L has waited EndingWait since. Third, a later leader
// makes the grant. It grants nothing before it has applied its own mark, and
// EndNode{X} comes before that mark in the log. Besides, L may lose the lead and
// win it back without noticing. An entry delayed from the earlier time then
// carries the number of the old reign, and is rejected. A removed process that is
// in no ring is ended without a wait: it owns nothing, so its authority does no
// harm.
//
// Caveats: two clocks may differ in pace by at most 1 %. A virtual machine that
// its host pauses notices only if the host advances the guest's CLOCK_BOOTTIME.
//
// # Files
//
// From the bottom up:
//
//   - clock.go, clock_linux.go: a clock that also runs in suspend;
//   - message.go: what a node asks, and what the leader answers;
//   - holder.go: the side of each node, which asks for authority and knows
//     until when it has it;
//   - confirm.go: whether a majority still follows the leader;
//   - input.go, reignstate.go: the agreed state and the nodes that gossip
//     knows, and what a leader has seen and granted in its reign;
//   - requests.go, decide.go: which requests it grants, and which entry it
//     proposes next;
//   - granter.go: the loop around these.
package authority

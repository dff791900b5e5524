// Package client asks rlnode for decisions, and puts them in front of net/http handlers.
//
//	limiter, err := client.New(client.Options{Nodes: []string{"http://127.0.0.1:8080"}})
//	if err != nil {
//		return err
//	}
//	defer limiter.Close()
//
//	d, err := limiter.Check(ctx, client.Request{Attributes: map[string]string{"ip": "198.51.100.7"}})
//	if !d.Allowed {
//		// refused; d.RetryAfter says until when
//	}
//
// A [Client] is made once and used by all goroutines. [Client.Check] asks whether something may happen now and takes
// its cost, [Client.Peek] only looks. Where the cost is known only afterwards, [Client.Reserve] takes an estimate and
// [Client.Settle] corrects it. [Client.Adjust] is a penalty or a reward. [Middleware] does all that a web server needs:
//
//	http.ListenAndServe(":8000", client.Middleware(limiter, client.MiddlewareOptions{})(handler))
//
// The package needs nothing but the standard library.
//
// # When no node answers
//
// A Decision can always be followed: look at Allowed, and at the error only to log it. When no node has answered within
// Options.Timeout, Options.OnError decides: [Open] (the default) allows, [Closed] refuses; DecidedBy is then [ByError],
// and the error, which says why, is returned as well.
//
// Open is for what a stranger can't bring about. What he could is refused, whatever OnError says: a call beyond
// Options.MaxQueue ([ErrQueueFull]; Options.OpenWhenFull leaves that to OnError, too), one that no node could decide
// ([ErrRequest]), and one that a node answers with an error below 500 ([Error]), such as a wrong token or a rule that it does
// not know. An answer of 5xx is a node's own trouble, and left to OnError.
//
// No value that a stranger chooses makes a check fail, and so gets around its limits: what the node would find too long
// or too large is made to fit first (see [Request]).
//
// # Several nodes
//
// All nodes of a cluster are equal. The first of Options.Nodes that is well gets all calls; so give each process the
// node next to it first. A node that can't be reached, does not answer in time, or answers 5xx (503 while it starts and
// drains) is passed over, for a quarter of a second at first and up to five while it goes on failing, until its /readyz
// is well again. The call that found out is repeated at the next node. (A node that only has too much to do, or can't reach
// the owner of a reservation, is not passed over.)
//
// A call that is repeated may count twice: the first node may have taken the cost before it fell silent. That costs
// quota, and never makes any. Settle can be repeated without harm. Adjust has an id, by which the owner of the subject knows
// a repeated one for a minute, and does it once; so has Reserve, with Request.RequestID.
//
// # Calls share requests
//
// A check goes out at once as a request of its own while fewer than Options.MaxInFlight requests are under way.
// Otherwise it waits for one of these to end, and then goes out with all others that wait, up to Options.MaxBatch, as
// one POST /v1/check/batch. There is no timer: who is alone waits for nobody, and the more there is to do the larger the
// batches. Checks that share a batch are decided one by one, in order, and answered together: as late as the latest.
// More than Options.MaxQueue do not wait; they fail at once with [ErrQueueFull], and are refused. So are those whose turn
// does not come in time although nodes answer.
package client

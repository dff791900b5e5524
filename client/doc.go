// Package client asks rlnode for decisions and can enforce them in front of net/http handlers.
//
//	limiter, err := client.New(client.Options{Nodes: []string{"http://127.0.0.1:8080"}})
//	if err != nil {
//		return err
//	}
//	defer limiter.Close()
//
//	d, err := limiter.Check(ctx, client.Request{Attributes: map[string]string{"ip": "198.51.100.7"}})
//	if !d.Allowed {
//		// refused; retry after d.RetryAfter
//	}
//
// Create one [Client] and share it between goroutines. [Client.Check] asks
// whether something may happen now and takes its cost; [Client.Peek] takes
// nothing. If the cost is known only afterwards, [Client.Reserve] takes an
// estimate and [Client.Settle] corrects it. [Client.Adjust] applies a penalty
// or a reward. [Middleware] does everything that a web server needs:
//
//	http.ListenAndServe(":8000", client.Middleware(limiter, client.MiddlewareOptions{})(handler))
//
// The package depends only on the standard library.
//
// # Limits that come with the call
//
// Rules are written once, for all callers. A call can also bring its own
// limits: Request.Limits with a Key, or Request.Subjects for one decision about
// several subjects. Such inline limits need no rule. The rules file can
// restrict them in its section inline.
//
//	d, err := limiter.Check(ctx, client.Request{
//		Namespace: "checkout",
//		Key:       []string{"user-42"},
//		Limits:    []client.Limit{{Limit: 5, Per: "1m"}, {Limit: 100, Per: "day"}},
//	})
//
// With [CountMode] the cost is taken even if it does not fit, for a cost that
// has already been incurred: d.Allowed is then false, d.Counted is true, and
// d.Used may exceed d.Limit. [Client.Usage] reads what a subject has used,
// [Client.Reset] clears it, and [Client.AdjustCosts] adds to it.
//
// # Slots
//
// A limit with the algorithm concurrency says how many may be held at once.
// [Client.Acquire] takes a [Slot], which renews itself until its Close. Run the
// protected work in its Context, which ends if the slot is lost. With
// MiddlewareOptions.Slots, [Middleware] holds slots for the length of the
// response.
//
// # When no node answers
//
// You can always act on a Decision: look at Allowed, and use the error only for
// logging. If no node answers within Options.Timeout, Options.OnError decides:
// [Open] (the default) allows, [Closed] refuses, [Local] limits within this
// process. DecidedBy is then [ByError] or [ByLocal], and the returned error
// explains why.
//
// Open and Local cover only failures that untrusted users can't cause. Calls
// that fail in a way that they could cause are refused whatever OnError says: a
// call beyond Options.MaxQueue ([ErrQueueFull]; Options.OpenWhenFull leaves
// that to OnError, too), a call that no node could decide ([ErrRequest]), and a
// call that a node answers with an error below 500 ([Error]), such as a wrong
// token or an unknown rule. A 5xx answer is a failure of the node, and left to
// OnError. A 403 with the code denied is not an error: the deny list or the
// rules' default has decided (see [Decision.Denied]).
//
// No value that an untrusted user chooses can make a check fail and so escape
// its limits: the client first shortens a value that is too long for the node
// (see [Request]).
//
// # Several nodes
//
// All nodes of a cluster are equal. The first healthy node in Options.Nodes
// gets all calls, so list the nearest node first in each process. A node that
// can't be reached, does not answer in time, or answers 5xx (503 while it
// starts or drains) is skipped until its /readyz succeeds again. The client
// probes it after a quarter of a second at first, and at intervals of up to
// five seconds while it keeps failing. The call that hit the failure is retried
// at the next node. (A node that is merely overloaded, or can't reach the owner
// of a reservation, is not skipped.)
//
// A retried call may count twice: the first node may have taken the cost before
// it stopped answering. That costs quota and never creates any. Settle can be
// repeated without harm. Adjust carries an id, by which the subject's owner
// deduplicates retries for a minute; so does Reserve with Request.RequestID.
//
// # Calls share requests
//
// While fewer than Options.MaxInFlight requests are in flight, a check is sent
// at once, in a request of its own. Otherwise it waits for one of them to end,
// and is then sent with all other waiting checks, up to Options.MaxBatch, as
// one POST /v1/check/batch. There is no timer: a lone call never waits, and
// batches grow with the load. Checks that share a batch are decided one by one,
// in order, and answered together once the last one is decided. A check with
// Subjects of which only some are in CountMode is never batched. Calls beyond
// Options.MaxQueue do not wait: they fail at once with [ErrQueueFull] and are
// refused. So are calls that can't be sent in time although nodes answer.
package client

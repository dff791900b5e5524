package client

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// DecidedBy is the way in which a node decided a check.
type DecidedBy string

// The ways to decide, as nodes name them. ByError and ByLocal are the client's own.
const (
	ByOwner    DecidedBy = "owner"    // the node that was asked owns the subject, or the rule has consistency local
	ByForward  DecidedBy = "forward"  // the node asked the owner
	ByLease    DecidedBy = "lease"    // the node spent quota that the owner had leased to it
	ByStandby  DecidedBy = "standby"  // the standby decided, because the owner can't be reached
	ByFallback DecidedBy = "fallback" // the node decided alone, cut off from the cluster
	ByList     DecidedBy = "list"     // the allow or deny list decided
	ByNone     DecidedBy = "none"     // no rule applied
	ByError    DecidedBy = "error"    // no node decided; Options.OnError did
	ByLocal    DecidedBy = "local"    // no node decided; this process did, because OnError is Local
)

// Never is the RetryAfter of a check that can never be allowed: its cost
// exceeds the limit's capacity, or a list refuses it.
const Never time.Duration = -1

// Decision is the answer to a check. Its fields describe the tightest limit:
// the one that refused, or else the one with the smallest share left. If no
// limit was evaluated, Limit, Used and Remaining are zero.
type Decision struct {
	Allowed   bool
	Granted   int64  // in AtMostMode, how much of the cost was taken
	Counted   bool   // not Allowed, but the cost was taken: only limits in CountMode were exceeded
	Unlimited bool   // Rule applies without limit, and no other rule has one: all numbers are zero
	Rule      string // for inline limits "inline", or "inline/" and the namespace
	Unit      string // of Limit, Used and Remaining: requests, tokens, …
	Limit     int64  // the capacity; for a bucket its burst
	// Used is rounded up. It may exceed Limit after counts and penalties. It is
	// an estimate, like Remaining, if ByLease.
	Used       int64
	Remaining  int64         // at least 0
	Window     time.Duration // in which Limit comes back; of a bucket, the time in which all of it refills
	TTL        time.Duration // of slots, in place of Window and Rate: how long one lasts unless it is renewed
	Rate       Rate          // what the limit allows over time
	ResetAfter time.Duration // until the counter is unused again, if nothing more is taken
	RetryAfter time.Duration // until the same check could be allowed; 0 if it was, or Never
	MoreAfter  time.Duration // until more than Remaining is available; 0 if unknown, or if it can't grow
	Delay      time.Duration // how long to hold an allowed request to keep the rule's rate

	DecidedBy    DecidedBy
	Node         string // the name of the node that answered
	RulesVersion int64

	// Code says why a check was refused, in a word for programs: CodeRateLimited,
	// …; empty if no node decided.
	Code string
	// Reason says in one sentence, for people, why a check was refused. Violated
	// names the limits that refused it, as far as they are known: for calls that
	// shared a request, it has the rule's name.
	Reason   string
	Violated []string
	// Refusal is what the rule that refused says to the end user, or nil; Refuse answers with it.
	Refusal *Refusal

	// Limits has all limits that were evaluated, if Request.Detail was set.
	Limits []LimitDecision

	headers rateHeaders
}

// Refusal is a rule's own answer to the end user, in place of the usual one.
// What the rule leaves out is zero.
type Refusal struct {
	Status  int               `json:"status"` // 400 to 499, or 503
	Type    string            `json:"type"`   // this and the next three: members of the problem
	Title   string            `json:"title"`
	Detail  string            `json:"detail"`
	Code    string            `json:"code"`
	Headers map[string]string `json:"headers"`
	Body    json.RawMessage   `json:"body"` // a JSON object, or a JSON string with plain text; it replaces the problem
}

// Denied reports whether the deny list refused the check, or no rule applied
// and the rules' default is to deny. No limit is used up then, and waiting does
// not help: a web server should answer 403, not 429.
func (d *Decision) Denied() bool {
	return !d.Allowed && (d.DecidedBy == ByList || d.DecidedBy == ByNone)
}

// Never reports whether the check can never be allowed as it is: its cost
// exceeds a limit's capacity, or a list or the rules' default denies it.
// Repeating it is no use.
func (d *Decision) Never() bool { return !d.Allowed && d.RetryAfter == Never }

// The Code of a check that limits refused, and of one that the rules deny.
const (
	CodeRateLimited    = "rate-limited"     // the limit is used up
	CodeCostAboveLimit = "cost-above-limit" // the cost exceeds the limit's capacity: see Decision.Never
	CodeReduced        = "reduced"          // the cost exceeds the capacity, which is lower for now than the rules say
	CodeBlocked        = "blocked"          // the rule blocks the subject
	CodeDenied         = "denied"           // see Decision.Denied
)

// Rate is what a limit allows over time: Limit units in each Per, as the rules
// say it. A bucket may allow another amount at once.
type Rate struct {
	Limit int64
	Per   time.Duration
}

// LimitDecision is the verdict of one limit.
type LimitDecision struct {
	Rule       string
	Name       string // the limit's name; the rule's name if the rule has only one limit
	Algorithm  string
	Unit       string
	Limit      int64
	Window     time.Duration // as in Decision, like the next two
	Rate       Rate
	Used       int64
	Remaining  int64
	ResetAfter time.Duration
	RetryAfter time.Duration // Never if the check can never be allowed
	MoreAfter  time.Duration // until more than Remaining is available; 0 if unknown, or if nothing is used
	Allowed    bool
	Shadow     bool          // the limit only reports, and never refuses
	Unlimited  bool          // there is no limit in Unit, which is empty for all units; no number is set
	TTL        time.Duration // as in Decision
}

// Reservation is an estimated cost that was taken, and must be settled.
type Reservation struct {
	Decision
	// ID identifies the reservation to Settle, at any node of the cluster. It is
	// empty if nothing was reserved: the check was refused, or no node answered.
	ID string
	// Slot is held until Settle, if the rules also limit slots. Otherwise it is
	// nil.
	Slot *Slot
}

// Settlement is the result of settling a reservation.
type Settlement struct {
	Settled   bool
	Costs     map[string]int64 // per unit, as settled; for a repeated call, those of the first
	Remaining int64
	Expired   bool // it came after the reservation's end
}

// Usage is what a subject has used of its limits.
type Usage struct {
	Rule      string // empty for a subject with inline limits
	Namespace string // of a subject with inline limits
	Key       []string
	Limits    []LimitUsage
	// Unknown is the number of further counters of the subject, whose limits the
	// node has not seen. It is 0 if the caller named the limits.
	Unknown int
	// BlockedUntil is when the rule's block of the subject ends; zero if it has
	// none, and the end of the year 9999 if the block has no end. Until then
	// nothing remains.
	BlockedUntil time.Time
	// Applied is, after an adjustment, by how much usage rose in each unit: a
	// reward takes off no more than there was. If a unit has several limits, the
	// largest change counts. Without an adjustment, Applied is nil.
	Applied map[string]int64
}

// LimitUsage is what a subject has used of one limit.
type LimitUsage struct {
	Name      string
	Algorithm string
	Unit      string
	Limit     int64
	Window    time.Duration // as in Decision, like the next two
	TTL       time.Duration
	Rate      Rate
	// Share is the part of Limit that may be used where the subject is counted:
	// all of it, or the region's or the node's part.
	Share      int64
	Used       int64 // without what is leased; exceeds Share if the subject is in debt
	Leased     int64 // held by nodes that may admit checks with it, and not used yet
	Remaining  int64 // Share less Used and Leased; 0 while the subject is blocked
	ResetAfter time.Duration
	MoreAfter  time.Duration // until more than Remaining is available; 0 if unknown, or if it can't grow
	// Estimated means that a node did not say how much it holds. What the node
	// holds counts as used.
	Estimated bool
	Unlimited bool // there is no limit in Unit, which is empty for all units; no number is set
	// Applied is, after an adjustment, by how much Used rose.
	Applied int64
	// Holders is how many hold slots, and Held lists those whose slots end first, at most 100.
	Holders int
	Held    []Holder
}

// Holder is who holds a slot.
type Holder struct {
	ID      string        // short, for people
	Slots   int64         // how many
	Age     time.Duration // since Acquire
	Expires time.Duration // until it ends, unless it is renewed
	Who     string        // Request.Who, or the token's name, or an address
}

// answer is the JSON of a decision, or of an error within a batch.
type answer struct {
	Allowed      *bool         `json:"allowed"`
	Rule         string        `json:"rule"`
	Unlimited    bool          `json:"unlimited"`
	Limit        int64         `json:"limit"`
	Used         int64         `json:"used"`
	Remaining    int64         `json:"remaining"`
	Unit         string        `json:"unit"`
	WindowMS     int64         `json:"window_ms"`
	TTLMS        int64         `json:"ttl_ms"`
	Rate         rate          `json:"rate"`
	ResetAfterMS int64         `json:"reset_after_ms"`
	RetryAfterMS int64         `json:"retry_after_ms"`
	MoreAfterMS  int64         `json:"more_after_ms"`
	DelayMS      int64         `json:"delay_ms"`
	Granted      int64         `json:"granted"`
	DecidedBy    DecidedBy     `json:"decided_by"`
	Node         string        `json:"node"`
	RulesVersion int64         `json:"rules_version"`
	Limits       []limitAnswer `json:"limits"`
	Code         string        `json:"code"`              // for a refusal
	Detail       string        `json:"detail"`            // for a refusal
	Violated     []string      `json:"violated-policies"` // for a refusal
	Refusal      refusal       `json:"refusal"`
	Reservation  string        `json:"reservation"`
	Slot         string        `json:"slot"`
	ExpiresMS    int64         `json:"expires_ms"`
	Error        *problem      `json:"error"`
}

// refusal is the JSON of a refusal: itself or, in a batch, its place in the batch's table.
type refusal struct {
	own   *Refusal
	place *int
}

// UnmarshalJSON parses either form.
func (ref *refusal) UnmarshalJSON(text []byte) error {
	if text[0] == '{' {
		return json.Unmarshal(text, &ref.own)
	}
	return json.Unmarshal(text, &ref.place)
}

type rate struct {
	Limit int64 `json:"limit"`
	PerMS int64 `json:"per_ms"`
}

func (r rate) rate() Rate { return Rate{max(r.Limit, 0), millis(r.PerMS)} }

type limitAnswer struct {
	Rule         string `json:"rule"`
	Name         string `json:"name"`
	Algorithm    string `json:"algorithm"`
	Unit         string `json:"unit"`
	Limit        int64  `json:"limit"`
	WindowMS     int64  `json:"window_ms"`
	TTLMS        int64  `json:"ttl_ms"`
	Rate         rate   `json:"rate"`
	Share        int64  `json:"share"` // this and the next two: of usage only
	Leased       int64  `json:"leased"`
	Estimated    bool   `json:"estimated"`
	Unlimited    bool   `json:"unlimited"`
	Applied      int64  `json:"applied"` // of adjustments only
	Used         int64  `json:"used"`
	Remaining    int64  `json:"remaining"`
	ResetAfterMS int64  `json:"reset_after_ms"`
	RetryAfterMS int64  `json:"retry_after_ms"`
	MoreAfterMS  int64  `json:"more_after_ms"`
	Allowed      bool   `json:"allowed"`
	Shadow       bool   `json:"shadow"`
	// These are of usage only: how many hold slots, and some of them.
	Holders int            `json:"holders"`
	Slots   []holderAnswer `json:"slots"`
}

type holderAnswer struct {
	Slot      string `json:"slot"`
	N         int64  `json:"n"`
	AgeMS     int64  `json:"age_ms"`
	ExpiresMS int64  `json:"expires_ms"`
	Who       string `json:"who"`
}

type problem struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
}

// UnmarshalJSON parses a node's answer to a check.
func (d *Decision) UnmarshalJSON(text []byte) error {
	var a answer
	err := json.Unmarshal(text, &a)
	if err == nil {
		*d, err = a.decision()
	}
	return err
}

// decision converts a to a Decision.
func (a *answer) decision() (Decision, error) {
	// The last two are the client's own words: no node sends them.
	if a.Allowed == nil || a.DecidedBy == "" || a.DecidedBy == ByError || a.DecidedBy == ByLocal {
		return Decision{}, fmt.Errorf("%w: it decides nothing", ErrBadAnswer)
	}

	d := Decision{
		Allowed: *a.Allowed, Granted: max(a.Granted, 0), Unlimited: a.Unlimited, Rule: a.Rule,
		Unit: a.Unit, Limit: max(a.Limit, 0), Used: max(a.Used, 0),
		Remaining: max(a.Remaining, 0),
		Window:    millis(a.WindowMS), TTL: millis(a.TTLMS), Rate: a.Rate.rate(),
		ResetAfter: millis(a.ResetAfterMS), RetryAfter: millisOrNever(a.RetryAfterMS),
		MoreAfter: millis(a.MoreAfterMS), Delay: millis(a.DelayMS), DecidedBy: a.DecidedBy,
		Node: a.Node, RulesVersion: a.RulesVersion,
		Code: a.Code, Reason: a.Detail, Violated: a.Violated, Refusal: a.Refusal.own,
	}
	if a.Limits != nil {
		d.Limits = make([]LimitDecision, len(a.Limits))
	}

	for i, l := range a.Limits {
		d.Limits[i] = LimitDecision{
			Rule: l.Rule, Name: l.Name, Algorithm: l.Algorithm, Unit: l.Unit,
			Limit: max(l.Limit, 0), Window: millis(l.WindowMS), TTL: millis(l.TTLMS),
			Rate: l.Rate.rate(), Used: max(l.Used, 0),
			Remaining: max(l.Remaining, 0), ResetAfter: millis(l.ResetAfterMS),
			RetryAfter: millisOrNever(l.RetryAfterMS), MoreAfter: millis(l.MoreAfterMS),
			Allowed: l.Allowed, Shadow: l.Shadow, Unlimited: l.Unlimited,
		}
	}

	if !d.Allowed {
		d.fillReason()
	}

	return d, nil
}

// fillReason fills in the reason of a refusal if it is missing, as in batches.
func (d *Decision) fillReason() {
	if len(d.Violated) == 0 {
		for _, l := range d.Limits {
			if !l.Allowed && !l.Shadow {
				d.Violated = append(d.Violated, l.Name)
			}
		}
	}

	if len(d.Violated) == 0 && d.Rule != "" {
		d.Violated = []string{d.Rule}
	}

	switch {
	case d.Reason != "":
	case d.DecidedBy == ByList:
		d.Reason = "The deny list refuses this."
	case d.DecidedBy == ByNone:
		d.Reason = "No rule applies, and the default is to deny."
	case d.Rule == "":
		d.Reason = "This is not allowed."
	case d.RetryAfter == Never:
		d.Reason = fmt.Sprintf("The limit of %s can never allow this: its cost is above the capacity of %d.", d.rateText(), d.Limit)
	default:
		d.Reason = fmt.Sprintf("The limit of %s is used up; retry in %s.", d.rateText(), formatDuration(d.RetryAfter))
	}
}

// rateText returns how much the limit allows, as in "100 requests per 1m" or "5
// requests at once, 100 per 1m".
func (d *Decision) rateText() string {
	switch {
	case d.TTL > 0:
		return fmt.Sprintf("%d %s at once", d.Limit, d.Unit)
	case d.Rate.Per == 0: // another kind of node
		return fmt.Sprintf("%d %s per %s", d.Limit, d.Unit, formatDuration(d.Window))
	case d.Rate.Limit == d.Limit:
		return fmt.Sprintf("%d %s per %s", d.Limit, d.Unit, formatDuration(d.Rate.Per))
	}
	return fmt.Sprintf("%d %s at once, %d per %s", d.Limit, d.Unit, d.Rate.Limit, formatDuration(d.Rate.Per))
}

// formatDuration formats d as people write it: 15m, not 15m0s.
func formatDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// usage is the JSON of a Usage.
type usage struct {
	Rule      string           `json:"rule"`
	Namespace string           `json:"namespace"`
	Key       json.RawMessage  `json:"key"` // a string or an array of strings
	Limits    []limitAnswer    `json:"limits"`
	Unknown   int              `json:"unknown"`
	Blocked   int64            `json:"blocked_until_ms"`
	Applied   map[string]int64 `json:"applied"`
}

// usage converts u to a Usage. key is the subject's key if u has none.
func (u *usage) usage(key []string) (Usage, error) {
	out := Usage{Rule: u.Rule, Namespace: u.Namespace, Limits: make([]LimitUsage, len(u.Limits)),
		Unknown: u.Unknown, Applied: u.Applied}
	if u.Blocked > 0 {
		out.BlockedUntil = time.UnixMilli(u.Blocked)
	}

	var single string
	if u.Key == nil {
		out.Key = key
	} else if json.Unmarshal(u.Key, &single) == nil {
		out.Key = []string{single}
	} else if err := json.Unmarshal(u.Key, &out.Key); err != nil {
		return Usage{}, fmt.Errorf("%w: key: %w", ErrBadAnswer, err)
	}

	for i, l := range u.Limits {
		out.Limits[i] = LimitUsage{
			Name: l.Name, Algorithm: l.Algorithm, Unit: l.Unit, Limit: l.Limit,
			Window: millis(l.WindowMS), TTL: millis(l.TTLMS), Rate: l.Rate.rate(),
			Share: l.Share, Used: l.Used, Leased: l.Leased, Remaining: l.Remaining,
			ResetAfter: millis(l.ResetAfterMS), MoreAfter: millis(l.MoreAfterMS),
			Estimated: l.Estimated, Unlimited: l.Unlimited, Applied: l.Applied,
			Holders: l.Holders,
		}

		for _, h := range l.Slots {
			held := Holder{ID: h.Slot, Slots: h.N, Age: millis(h.AgeMS), Expires: millis(h.ExpiresMS), Who: h.Who}
			out.Limits[i].Held = append(out.Limits[i].Held, held)
		}
	}

	return out, nil
}

// millis returns n milliseconds, capped at what a Duration can hold.
func millis(n int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(min(max(n, 0), most)) * time.Millisecond
}

// millisOrNever is like millis, except that it returns Never for a negative n.
func millisOrNever(n int64) time.Duration {
	if n < 0 {
		return Never
	}
	return millis(n)
}

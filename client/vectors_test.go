package client

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// vectors are requests and answers that the clients in all languages must send and understand.
type vectors struct {
	Calls []struct {
		Name, Call, Path string
		Request          vectorRequest
		Sent             map[string]any
		Status           int
		Answer           json.RawMessage
		AnswerHeaders    map[string]string `json:"answer_headers"`
		Result           map[string]any
		Headers          map[string]string
		Error            *struct {
			Status       int
			Code, Detail string
			OnError      bool `json:"on_error"`
		}
	}
	Invalid []struct {
		Name, Call string
		Request    vectorRequest
	}
	Values []struct {
		JSON, Text    string
		For           []string
		Absent, Wrong bool
	}
	Keys []struct {
		JSON       string
		Attributes int
		Limits     bool
		Text       []string
		Error      string
		Invalid    bool
	}
	Addresses []struct {
		Have string
		Want *string
	}
	// Headers has what a node answers, with the headers; see TestHeaderVectors in api/codec.
	Headers []struct {
		Name   string
		Checks []struct {
			Answer  json.RawMessage
			Status  int
			Headers map[string]string
		}
	}
}

type vectorRequest struct {
	vectorSubject
	Rule        string
	Attributes  map[string]string
	Subjects    []vectorSubject
	Detail      bool
	Headers     bool
	RequestID   string `json:"request_id"`
	LimitName   string `json:"limit_name"`
	Bill        bool
	TTL         int64 `json:"ttl_ms"`
	Reservation string
	N           int64
	Who         string
}

type vectorSubject struct {
	Namespace, Consistency string
	Key                    []string
	Limits                 []struct {
		Limit, Burst                              int64
		Per, Algorithm, Unit, Name, TZ, From, TTL string
	}
	Shadow bool
	Mode   Mode
	Cost   int64
	Costs  map[string]int64
}

func (v *vectorSubject) subject() Subject {
	s := Subject{Namespace: v.Namespace, Key: v.Key, Exact: v.Consistency == "exact",
		Shadow: v.Shadow, Mode: v.Mode, Cost: v.Cost, Costs: v.Costs}
	if v.Limits != nil {
		s.Limits = []Limit{}
	}
	for _, l := range v.Limits {
		s.Limits = append(s.Limits,
			Limit{l.Limit, l.Per, l.Algorithm, l.Burst, l.Unit, l.Name, l.TZ, l.From == "first", l.TTL})
	}
	return s
}

func (v *vectorRequest) request() Request {
	s := v.subject()
	q := Request{
		Rule: v.Rule, Key: s.Key, Attributes: v.Attributes, Limits: s.Limits,
		Namespace: s.Namespace, Exact: s.Exact, Shadow: s.Shadow, Mode: s.Mode,
		Cost: s.Cost, Costs: s.Costs, Detail: v.Detail, Headers: v.Headers, RequestID: v.RequestID,
		LimitName: v.LimitName, Bill: v.Bill, Slots: v.N, Who: v.Who,
	}
	if v.Subjects != nil {
		q.Subjects = []Subject{}
	}
	for i := range v.Subjects {
		q.Subjects = append(q.Subjects, v.Subjects[i].subject())
	}
	return q
}

// make makes the call, and returns its result in the form of the vectors.
func (v *vectorRequest) make(c *Client, call string) (result map[string]any, header http.Header, err error) {
	q := v.request()
	var d Decision
	var u Usage
	more := map[string]any{}
	switch call {
	case "check":
		d, err = c.Check(background, q)
	case "peek":
		d, err = c.Peek(background, q)
	case "count":
		q.Mode = CountMode
		d, err = c.Check(background, q)
	case "reserve":
		var r Reservation
		r, err = c.Reserve(background, q, time.Duration(v.TTL)*time.Millisecond)
		d = r.Decision
		if r.ID != "" {
			more["reservation"] = r.ID
		}
	case "acquire":
		var slot *Slot
		slot, err = c.Acquire(background, q, time.Duration(v.TTL)*time.Millisecond)
		if refused, ok := errors.AsType[*Refused](err); ok {
			d, err = refused.Decision, refused.cause
		} else {
			d, err = slot.Decision, slot.Err
			more["slot"] = slot.ID
		}
	case "settle":
		s, err := c.Settle(background, v.Reservation, v.Costs)
		return asJSON(map[string]any{"settled": s.Settled, "costs": s.Costs, "remaining": s.Remaining}), nil, err
	case "usage":
		u, err = c.Usage(background, q)
		return usageVector(u), nil, err
	case "reset":
		u, err = c.Reset(background, q)
		return usageVector(u), nil, err
	case "adjust":
		u, err = c.AdjustCosts(background, q, v.Costs)
		return usageVector(u), nil, err
	}
	header = http.Header{}
	d.SetHeaders(header)
	for name, value := range map[string]any{
		"allowed": d.Allowed, "counted": d.Counted, "denied": d.Denied(), "rule": d.Rule,
		"unit": d.Unit, "limit": d.Limit, "used": d.Used,
		"remaining": d.Remaining, "window_ms": d.Window.Milliseconds(),
		"reset_after_ms": d.ResetAfter.Milliseconds(), "retry_after_ms": retryVector(d.RetryAfter),
		"granted": d.Granted, "more_after_ms": d.MoreAfter.Milliseconds(), "never": d.Never(),
		"ttl_ms": d.TTL.Milliseconds(), "unlimited": d.Unlimited, "code": d.Code,
		"rate":     rateVector(d.Rate),
		"delay_ms": d.Delay.Milliseconds(), "decided_by": d.DecidedBy, "node": d.Node, "rules_version": d.RulesVersion,
	} {
		more[name] = value
	}
	var limits []any
	for _, l := range d.Limits {
		limits = append(limits, map[string]any{
			"rule": l.Rule, "name": l.Name, "algorithm": l.Algorithm, "unit": l.Unit,
			"limit": l.Limit, "window_ms": l.Window.Milliseconds(), "used": l.Used,
			"remaining": l.Remaining, "reset_after_ms": l.ResetAfter.Milliseconds(),
			"retry_after_ms": retryVector(l.RetryAfter),
			"more_after_ms":  l.MoreAfter.Milliseconds(), "allowed": l.Allowed, "shadow": l.Shadow,
			"unlimited": l.Unlimited, "ttl_ms": l.TTL.Milliseconds(),
		})
	}
	more["limits"] = limits
	return asJSON(more), header, err
}

// agrees reports whether have has what want names.
func agrees(have, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		fields, ok := have.(map[string]any)
		for name := range want {
			ok = ok && agrees(fields[name], want[name])
		}
		return ok
	case []any:
		list, ok := have.([]any)
		ok = ok && len(list) == len(want)
		for i := range want {
			ok = ok && agrees(list[i], want[i])
		}
		return ok
	}
	return reflect.DeepEqual(have, want)
}

func rateVector(r Rate) map[string]any {
	return map[string]any{"limit": r.Limit, "per_ms": r.Per.Milliseconds()}
}

func retryVector(d time.Duration) int64 {
	if d == Never {
		return -1
	}
	return d.Milliseconds()
}

func usageVector(u Usage) map[string]any {
	var limits []any
	for _, l := range u.Limits {
		var held []any
		for _, h := range l.Held {
			held = append(held,
				map[string]any{"slot": h.ID, "n": h.Slots, "age_ms": h.Age.Milliseconds(),
					"expires_ms": h.Expires.Milliseconds(), "who": h.Who})
		}
		limits = append(limits, map[string]any{
			"ttl_ms": l.TTL.Milliseconds(), "holders": l.Holders, "slots": held, "name": l.Name,
			"algorithm": l.Algorithm, "unit": l.Unit, "limit": l.Limit,
			"window_ms": l.Window.Milliseconds(), "used": l.Used,
			"share": l.Share, "leased": l.Leased, "estimated": l.Estimated, "applied": l.Applied,
			"remaining": l.Remaining, "reset_after_ms": l.ResetAfter.Milliseconds(),
			"more_after_ms": l.MoreAfter.Milliseconds(), "rate": rateVector(l.Rate),
		})
	}
	blocked := int64(0)
	if !u.BlockedUntil.IsZero() {
		blocked = u.BlockedUntil.UnixMilli()
	}
	return asJSON(map[string]any{
		"rule": u.Rule, "namespace": u.Namespace, "key": u.Key, "limits": limits,
		"unknown": u.Unknown, "blocked_until_ms": blocked, "applied": u.Applied,
	})
}

// asJSON returns m with the types that JSON has.
func asJSON(m map[string]any) (n map[string]any) {
	text, err := json.Marshal(m)
	if err == nil {
		err = json.Unmarshal(text, &n)
	}
	if err != nil {
		panic(err)
	}
	return n
}

func readVectors(t *testing.T) (v vectors) {
	t.Helper()
	text, err := os.ReadFile("vectors.json")
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	expect.NoError(t, err)
	return v
}

func TestVectors(t *testing.T) {
	v := readVectors(t)
	for _, one := range v.Calls {
		t.Run(one.Name, func(t *testing.T) {
			f := newFake(t)
			f.answer = func(w http.ResponseWriter, _ *http.Request) bool {
				for name, value := range one.AnswerHeaders {
					w.Header().Set(name, value)
				}
				w.WriteHeader(one.Status)
				text := string(one.Answer)
				if text == "null" {
					text = "<html>"
				}
				_, _ = io.WriteString(w, text)
				return true
			}
			open, closed := connect(t, Options{Timeout: 5 * time.Second}, f), connect(t,
				Options{Timeout: 5 * time.Second, OnError: Closed}, f)
			result, header, err := one.Request.make(open, one.Call)
			if sent := f.requests()[0]; sent.path != one.Path || !reflect.DeepEqual(sent.checks[0], one.Sent) {
				t.Errorf("sent %s %v, want %s %v", sent.path, sent.checks[0], one.Path, one.Sent)
			}
			for name, want := range one.Headers {
				expect.Equal(t, header.Get(name), want, "%s", name)
			}
			if one.Error == nil {
				for name, want := range one.Result {
					if have := result[name]; !agrees(have, want) {
						t.Errorf("%s: have %v, want %v", name, have, want)
					}
				}
				if err != nil {
					t.Error(err)
				}
				return
			}
			var answered *Error
			switch {
			case err == nil:
				t.Errorf("it is no error: have %v", result)
			case one.Error.OnError:
				refused, _, err := one.Request.make(closed, one.Call)
				if result["allowed"] != true || refused["allowed"] != false ||
					result["decided_by"] != "error" || err == nil {
					t.Errorf("open: have %v, closed: have %v, %v", result, refused, err)
				}
			case !errors.As(err, &answered) || answered.Status != one.Error.Status ||
				answered.Code != one.Error.Code || result["allowed"] == true:
				t.Errorf("have %v, %v, want %+v", result, err, *one.Error)
			}
		})
	}
}

// TestHeaderVectors: from an answer without headers, as in a batch, the client
// makes those that a node sends for a single check.
func TestHeaderVectors(t *testing.T) {
	for _, one := range readVectors(t).Headers {
		for i, check := range one.Checks {
			var d Decision
			expect.NoError(t, json.Unmarshal(check.Answer, &d))
			var a struct {
				Code  string
				Retry int64 `json:"retry_after_ms"`
				More  int64 `json:"more_after_ms"`
				Rate  struct {
					Limit int64
					PerMS int64 `json:"per_ms"`
				}
			}
			expect.NoError(t, json.Unmarshal(check.Answer, &a))

			want := Rate{a.Rate.Limit, time.Duration(a.Rate.PerMS) * time.Millisecond}
			if d.Code != a.Code || d.Never() != (a.Retry == -1) || d.Rate != want ||
				d.MoreAfter.Milliseconds() != a.More {
				t.Errorf("%s, check %d: got %+v from %s", one.Name, i, d, check.Answer)
			}
			d.MakeHeaders(true, true, true)
			h := http.Header{}
			d.SetHeaders(h)
			got := map[string]string{}
			for name := range h {
				got[name] = h.Get(name)
			}
			headers := map[string]string{}
			for name, value := range check.Headers {
				headers[http.CanonicalHeaderKey(name)] = value
			}
			expect.DeepEqual(t, got, headers, "%s, check %d: got the headers", one.Name, i)
		}
	}
}

func TestInvalidVectors(t *testing.T) {
	v, f := readVectors(t), newFake(t)
	c := connect(t, Options{}, f)
	for _, one := range v.Invalid {
		result, _, err := one.Request.make(c, one.Call)
		if wantError(t, err, ErrRequest); result["allowed"] == true {
			t.Errorf("%s: have %v", one.Name, result)
		}
	}
	if n := len(f.requests()); n > 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// A client in Go knows only text, so that it leaves all other values out.
func TestValueVectors(t *testing.T) {
	v, f := readVectors(t), newFake(t)
	c := connect(t, Options{}, f)
	sent := func(q Request) map[string]any {
		if _, err := c.Check(background, q); err != nil {
			t.Fatalf("%+v: %v", q, err)
		}
		all := f.requests()
		return all[len(all)-1].checks[0]
	}
	n := 0
	for _, one := range v.Values {
		var value string
		if len(one.For) > 0 || one.JSON == "" || one.JSON[0] != '"' || json.Unmarshal([]byte(one.JSON), &value) != nil {
			continue
		}
		n++
		want := map[string]any{"a": one.Text}
		if one.Absent {
			want = map[string]any{}
		}
		expect.DeepEqual(t, sent(Request{Attributes: map[string]string{"a": value}})["attributes"],
			want, "%.40s: sent", one.JSON)
	}
	for _, one := range v.Keys {
		var single string
		var key []string
		switch {
		case one.JSON == "" || one.Invalid || strings.Contains(one.JSON, "null"):
			continue
		case json.Unmarshal([]byte(one.JSON), &single) == nil:
			key = []string{single}
		case json.Unmarshal([]byte(one.JSON), &key) != nil:
			continue
		}
		n++
		q := Request{Rule: "r", Key: key}
		if one.Limits {
			q = Request{Key: key, Limits: []Limit{{Limit: 1, Per: "1m"}}}
		}
		var want any = key[0]
		if len(key) > 1 {
			want = []any{key[0], key[1]}
		}
		expect.DeepEqual(t, sent(q)["key"], want, "%s: sent", one.JSON)
	}
	if n < 20 {
		t.Errorf("only %d vectors are for Go", n)
	}
}

func TestAddressVectors(t *testing.T) {
	const peer = "192.0.2.1"
	for _, one := range readVectors(t).Addresses {
		want := peer
		if one.Want != nil {
			want = *one.Want
		}
		r := &http.Request{RemoteAddr: peer + ":4711", Header: http.Header{"X-Forwarded-For": {one.Have}}}
		expect.Equal(t, Address(1)(r), want, "%q", one.Have)
	}
}

package client

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// perMinute is n requests a minute.
func perMinute(n int64) []Limit { return []Limit{{Limit: n, Per: "1m"}} }

// userLimits is the JSON of a subject with inline limits.
func userLimits(more map[string]any) map[string]any {
	m := map[string]any{"key": "user-42", "limits": []any{map[string]any{"limit": 5.0, "per": "1m"}}}
	for name, v := range more {
		m[name] = v
	}
	return m
}

// TestLimitsAreSent: inline limits are sent as the API expects them.
func TestLimitsAreSent(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{}, f)
	key := []string{"user-42"}
	for _, test := range []struct {
		name string
		have Request
		want map[string]any
	}{
		{"a limit", Request{Key: key, Limits: perMinute(5)}, userLimits(nil)},
		{"a key of several values", Request{Key: []string{"a", "b"}, Limits: perMinute(5)},
			userLimits(map[string]any{"key": []any{"a", "b"}})},
		{"an empty key", Request{Key: []string{}, Limits: perMinute(5)}, userLimits(map[string]any{"key": []any{}})},
		{"all of it", Request{
			Namespace: "checkout", Key: key, Exact: true, Shadow: true, Mode: CountMode, Cost: 2,
			Costs: map[string]int64{"tokens": 900}, Detail: true,
			Limits: []Limit{
				{Limit: 5, Per: "1m", Algorithm: "token-bucket", Burst: 10, Unit: "tokens", Name: "n"},
				{Limit: 7, Per: "day", TZ: "Europe/Paris"},
				{Limit: 9, Per: time.Minute.String(), FromFirst: true, Algorithm: "fixed-window"},
			},
		}, map[string]any{
			"namespace": "checkout", "key": "user-42", "consistency": "exact", "shadow": true,
			"mode": "count", "cost": 2.0,
			"costs": map[string]any{"tokens": 900.0}, "detail": true,
			"limits": []any{
				map[string]any{"limit": 5.0, "per": "1m", "algorithm": "token-bucket",
					"burst": 10.0, "unit": "tokens", "name": "n"},
				map[string]any{"limit": 7.0, "per": "day", "tz": "Europe/Paris"},
				map[string]any{"limit": 9.0, "per": "1m0s", "from": "first", "algorithm": "fixed-window"},
			},
		}},
		{"several subjects", Request{Subjects: []Subject{
			{Key: key, Limits: perMinute(5)},
			{Namespace: "b\xff", Key: []string{"x"}, Limits: perMinute(6), Cost: 3, Mode: PeekMode},
		}}, map[string]any{"subjects": []any{userLimits(nil), map[string]any{
			"namespace": "b\uFFFD", "key": "x",
			"limits": []any{map[string]any{"limit": 6.0, "per": "1m"}}, "cost": 3.0, "mode": "peek",
		}}}},
		{"a rule that counts", Request{Rule: "r", Key: key, Mode: CountMode},
			map[string]any{"rule": "r", "key": "user-42", "mode": "count"}},
		{"a check by its name", Request{Rule: "r", Key: key, Mode: CheckMode},
			map[string]any{"rule": "r", "key": "user-42"}},
		{"a count with an id",
			Request{Key: key, Limits: perMinute(5), Mode: CountMode, RequestID: "id"},
			userLimits(map[string]any{"mode": "count", "request_id": "id"})},
		{"a check with an id", Request{Key: key, Limits: perMinute(5), RequestID: "id"}, userLimits(nil)},
	} {
		if _, err := c.Check(background, test.have); err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		all := f.requests()
		if have := all[len(all)-1]; !reflect.DeepEqual(have.checks[0], test.want) || have.path != "/v1/check" {
			t.Errorf("%s: have %s %v, want %v", test.name, have.path, have.checks[0], test.want)
		}
	}
}

// TestPeekTakesNothingOfAnySubject: Peek takes nothing from any subject, and
// does not change the caller's request.
func TestPeekTakesNothingOfAnySubject(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{}, f)
	several := []Subject{{Key: []string{"user-42"}, Limits: perMinute(5), Mode: CountMode},
		{Key: []string{"user-42"}, Limits: perMinute(5)}}
	for i, test := range []struct {
		have Request
		want map[string]any
	}{
		{Request{Key: []string{"user-42"}, Limits: perMinute(5), Mode: CountMode},
			userLimits(map[string]any{"mode": "peek"})},
		{Request{Subjects: several}, map[string]any{"subjects": []any{
			userLimits(map[string]any{"mode": "peek"}), userLimits(map[string]any{"mode": "peek"}),
		}}},
		{Request{Rule: "r", Mode: PeekMode}, map[string]any{"rule": "r", "peek": true}},
	} {
		if _, err := c.Peek(background, test.have); err != nil {
			t.Error(err)
		}
		expect.DeepEqual(t, f.requests()[i].checks[0], test.want, "f.requests()[i].checks[0]")
	}
	if several[0].Mode != CountMode || several[1].Mode != "" {
		t.Errorf("the caller's subjects are now %+v", several)
	}
}

// TestRequestsThatNobodyCouldDecide: an invalid request is refused before anything is sent.
func TestRequestsThatNobodyCouldDecide(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{OnError: Open}, f)
	key, limits := []string{"k"}, perMinute(1)
	good := Subject{Key: key, Limits: limits}
	for name, q := range map[string]Request{
		"limits and a rule":         {Rule: "r", Key: key, Limits: limits},
		"limits and attributes":     {Attributes: map[string]string{"a": "b"}, Limits: limits},
		"limits without a key":      {Limits: limits},
		"a namespace and no limits": {Namespace: "n", Key: key},
		"no limits":                 {Key: key, Limits: []Limit{}},
		"nine limits":               {Key: key, Limits: slices.Repeat(limits, 9)},
		"a limit below 0":           {Key: key, Limits: []Limit{{Limit: -1, Per: "1m"}}},
		"a limit too large":         {Key: key, Limits: perMinute(1 << 53)},
		"a limit without a window":  {Key: key, Limits: []Limit{{Limit: 1}}},
		"a negative burst":          {Key: key, Limits: []Limit{{Limit: 1, Per: "1m", Burst: -1}}},
		"a long name": {Key: key,
			Limits: []Limit{{Limit: 1, Per: "1m", Name: strings.Repeat("x", maxValue+1)}}},
		"a name not in UTF-8":     {Key: key, Limits: []Limit{{Limit: 1, Per: "1m", Name: "\xff"}}},
		"an unknown mode":         {Key: key, Limits: limits, Mode: "take"},
		"a rule, an unknown mode": {Rule: "r", Mode: "take"},
		"a negative cost":         {Key: key, Limits: limits, Cost: -1},
		"a negative unit":         {Key: key, Limits: limits, Costs: map[string]int64{"t": -1}},
		"no subjects":             {Subjects: []Subject{}},
		"17 subjects":             {Subjects: make([]Subject, 17)},
		"subjects and a key":      {Key: key, Subjects: []Subject{good}},
		"subjects and a mode":     {Mode: CountMode, Subjects: []Subject{good}},
		"a subject without a key": {Subjects: []Subject{good, {Limits: limits}}},
		"a subject's mode":        {Subjects: []Subject{{Key: key, Limits: limits, Mode: "x"}}},
		"a count's long id": {Key: key, Limits: limits, Mode: CountMode,
			RequestID: strings.Repeat("x", maxID+1)},
		"too much of it": {Subjects: slices.Repeat([]Subject{{Key: slices.Repeat([]string{strings.Repeat("x", maxValue)}, 9), Limits: limits}}, 8)},
	} {
		d, err := c.Check(background, q)
		if wantError(t, err, ErrRequest); d.Allowed {
			t.Errorf("%s: have %+v, %v", name, d, err)
		}
	}
	for name, q := range map[string]Request{
		"nothing": {}, "attributes": {Rule: "r", Attributes: map[string]string{}},
		"rule and limits": {Rule: "r", Key: key, Limits: limits},
		"subjects":        {Subjects: []Subject{good}}, "no key": {Namespace: "n"},
		"nine limits": {Key: key, Limits: slices.Repeat(limits, 9)},
	} {
		_, err := c.Usage(background, q)
		wantError(t, err, ErrRequest)
		_, err = c.Reset(background, q)
		wantError(t, err, ErrRequest)
		if _, err = c.AdjustCosts(background, q, map[string]int64{"tokens": 1}); err == nil {
			t.Errorf("%s: AdjustCosts accepted it", name)
		}
	}
	for _, costs := range []map[string]int64{nil, {}, {"tokens": 0}, {"tokens": 1 << 53}, {"tokens": -1 << 53}} {
		_, err := c.AdjustCosts(background, Request{Rule: "r"}, costs)
		wantError(t, err, ErrRequest)
	}
	if n := len(f.requests()); n > 0 {
		t.Errorf("%d requests were sent", n)
	}
}

const over = `{"allowed":false,"rule":"inline","limit":5,"used":8,"remaining":0,"unit":"requests","window_ms":60000,"reset_after_ms":60000,` +
	`"retry_after_ms":5500,"delay_ms":0,"decided_by":"owner","node":"n1","rules_version":3}`

// TestCountsAreDecided: 200 with allowed false is a decision about a count,
// alone and within a batch, but not about a check.
func TestCountsAreDecided(t *testing.T) {
	f := newFake(t)
	f.decide = func(map[string]any) (int, string) { return 200, over }
	c := connect(t, Options{OnError: Open, MaxInFlight: 1, Timeout: process.Timeout}, f)
	count := func(i int) Request {
		return Request{Key: []string{fmt.Sprint(i)}, Limits: perMinute(5), Mode: CountMode}
	}
	want := Decision{
		Counted: true, Rule: "inline", Unit: "requests", Limit: 5, Used: 8, Window: time.Minute,
		ResetAfter: time.Minute, RetryAfter: 5500 * time.Millisecond,
		DecidedBy: ByOwner, Node: "n1", RulesVersion: 3, Violated: []string{"inline"},
		Reason: "The limit of 5 requests per 1m is used up; retry in 5.5s.",
	}
	release := f.holdAnswers()
	ds, errs, wait := checkConcurrently(c, 1, count)
	process.Eventually(t, "one is under way", func() bool { return len(f.requests()) == 1 })
	more, moreErrs, waitMore := checkConcurrently(c, 3, count)
	process.Eventually(t, "three wait", func() bool { return c.waiting() == 3 })
	release()
	wait()
	waitMore()
	ds, errs = append(ds, more...), append(errs, moreErrs...)
	for i, d := range ds {
		if errs[i] != nil || !reflect.DeepEqual(d, want) {
			t.Errorf("have %+v, %v, want %+v", d, errs[i], want)
		}
	}
	expect.DeepEqual(t, f.sizes(), []int{1, 3}, "requests checks")

	q := count(0)
	q.Mode = CheckMode
	if d, err := c.Check(background, q); err == nil || d.Counted || !d.Allowed {
		t.Errorf("a check: have %+v, %v", d, err) // a failure of the node: OnError lets the check pass
	}
	f.set(func() { f.decide = func(map[string]any) (int, string) { return 429, refused } })
	both := Request{Subjects: []Subject{{Key: []string{"a"}, Limits: perMinute(5), Mode: CountMode},
		{Key: []string{"b"}, Limits: perMinute(5)}}}
	if d, err := c.Check(background, both); err != nil || d.Allowed || d.Counted {
		t.Errorf("nothing was taken: have %+v, %v", d, err)
	}
	f.set(func() { f.decide = func(map[string]any) (int, string) { return 403, denied } })
	if d, err := c.Check(background,
		Request{Rule: "r", Key: []string{"k"}, Mode: CountMode}); err != nil || d.Allowed || d.Counted || !d.Denied() {
		t.Errorf("denied: have %+v, %v", d, err)
	}
}

// TestMixturesGoAlone: a check that counts only some subjects is not batched,
// because its answer within a batch would not say whether the counts were
// taken.
func TestMixturesGoAlone(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{MaxInFlight: 1, Timeout: process.Timeout}, f)
	release := f.holdAnswers()
	_, _, wait := checkConcurrently(c, 1, eachIP)
	process.Eventually(t, "one is under way", func() bool { return len(f.requests()) == 1 })
	_, _, waitAlone := checkConcurrently(c, 2, func(int) Request {
		return Request{Subjects: []Subject{{Key: []string{"a"}, Limits: perMinute(5),
			Mode: CountMode}, {Key: []string{"b"}, Limits: perMinute(5)}}}
	})
	process.Eventually(t, "they don't wait for it", func() bool { return len(f.requests()) == 3 })
	release()
	wait()
	waitAlone()
	expect.DeepEqual(t, f.sizes(), []int{1, 1, 1}, "requests checks")
}

// TestUsageResetAndAdjust checks the requests of Usage, Reset and AdjustCosts,
// and how their answers are parsed.
func TestUsageResetAndAdjust(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{}, f)
	f.decide = func(map[string]any) (int, string) {
		return 200,
			`{"namespace":"checkout","key":"user-42","limits":[{"name":"inline","algorithm":"sliding-window","unit":"requests","limit":5,` +
				`"window_ms":60000,"used":7,"remaining":0,"reset_after_ms":1400}],"unknown":2}`
	}
	want := Usage{
		Namespace: "checkout", Key: []string{"user-42"}, Unknown: 2,
		Limits: []LimitUsage{{
			Name: "inline", Algorithm: "sliding-window", Unit: "requests", Limit: 5,
			Window: time.Minute, Used: 7, ResetAfter: 1400 * time.Millisecond,
		}},
	}
	q := Request{Namespace: "checkout", Key: []string{"user-42"}, Limits: perMinute(5),
		RequestID: "mine", Cost: 3, Mode: CountMode, Exact: true}
	asked := userLimits(map[string]any{"namespace": "checkout"})
	named := userLimits(map[string]any{"namespace": "checkout", "request_id": "mine"})
	adjusted := userLimits(map[string]any{"namespace": "checkout", "request_id": "mine",
		"costs": map[string]any{"requests": -2.0, "tokens": 9.0}})
	for i, test := range []struct {
		path string
		body map[string]any
		ask  func() (Usage, error)
	}{
		{"/v1/usage", asked, func() (Usage, error) { return c.Usage(background, q) }},
		{"/v1/reset", named, func() (Usage, error) { return c.Reset(background, q) }},
		{"/v1/adjust", adjusted, func() (Usage, error) {
			return c.AdjustCosts(background, q, map[string]int64{"requests": -2, "tokens": 9})
		}},
		{"/v1/usage", map[string]any{"rule": "r", "key": []any{"a", "b"}}, func() (Usage, error) {
			return c.Usage(background, Request{Rule: "r", Key: []string{"a", "b"}})
		}},
		{"/v1/usage", map[string]any{"namespace": "n", "key": "a"}, func() (Usage, error) {
			return c.Usage(background, Request{Namespace: "n", Key: []string{"a"}})
		}},
	} {
		have, err := test.ask()
		if err != nil || !reflect.DeepEqual(have, want) {
			t.Errorf("%s: have %+v, %v, want %+v", test.path, have, err, want)
		}
		if sent := f.requests()[i]; sent.path != test.path || !reflect.DeepEqual(sent.checks[0], test.body) {
			t.Errorf("have %s %v, want %s %v", sent.path, sent.checks[0], test.path, test.body)
		}
	}
	q.RequestID = ""
	if _, err := c.Reset(background, q); err != nil {
		t.Error(err)
	}
	if id, _ := f.requests()[5].checks[0]["request_id"].(string); len(id) < 20 {
		t.Errorf("a reset without an id was sent with %q", id)
	}
	f.set(func() {
		f.decide = func(map[string]any) (int, string) { return 503, `{"code":"no-owner","detail":"x"}` }
	})
	short := connect(t, Options{Timeout: 200 * time.Millisecond}, f)
	if _, err := short.Usage(background, q); err == nil {
		t.Error("Usage without an owner returned no error")
	}
}

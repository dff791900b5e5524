package envoy

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/limiter"
)

// vectorRules has a domain for each vector.
const vectorRules = `
version: 1
envoy:
  - domain: d
    descriptors:
      - {key: k, rate_limit: {unit: year, requests_per_unit: 2}}
      - {key: three, rate_limit: {unit: year, requests_per_unit: 3}}
      - {key: five, rate_limit: {unit: year, requests_per_unit: 5, name: five}}
      - {key: none, rate_limit: {unit: year, requests_per_unit: 0}}
      - {key: free, rate_limit: {unlimited: true}}
      - {key: odd, rate_limit: {per: 15m, requests_per_unit: 2}}
      - {key: bucket, rate_limit: {unit: year, requests_per_unit: 10, burst: 4, algorithm: token-bucket}}
      - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
      - {key: q1, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
      - {key: q2, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
      - {key: wide, rate_limit: {unit: year, requests_per_unit: 9, name: wide}}
      - {key: narrow, rate_limit: {unit: year, requests_per_unit: 9, replaces: [{name: wide}]}}
  - domain: tree
    descriptors:
      - {key: k, value: v, rate_limit: {unit: year, requests_per_unit: 1}}
      - {key: k, value: v*, rate_limit: {unit: year, requests_per_unit: 2}}
      - {key: k, rate_limit: {unit: year, requests_per_unit: 3}}
      - key: deep
        descriptors:
          - {key: er, rate_limit: {unit: year, requests_per_unit: 4}}
`

// oneDescriptor returns a request with one descriptor of one entry in domain d;
// more is inserted after the entries.
func oneDescriptor(key, value, more string) string {
	return `{"domain":"d","descriptors":[{"entries":[{"key":"` + key + `","value":"` + value + `"}]` + more + `}]}`
}

// ok and over return the answers to such a request.
func ok(limit, remaining string) string {
	return answered("OK", limit, remaining)
}

func over(limit, remaining string) string {
	return answered("OVER_LIMIT", limit, remaining)
}

func answered(code, limit, remaining string) string {
	status := "code:" + code
	if limit != "" {
		status += ",currentLimit:{" + limit + "}"
	}
	if remaining != "" {
		status += ",limitRemaining:" + remaining
	}
	return "{overallCode:" + code + ",statuses:[{" + status + "}]}"
}

// twice returns a request with two descriptors of the same entry; what is only
// in one of them comes after the entries.
func twice(key, value, first, second string) string {
	entries := `{"entries":[{"key":"` + key + `","value":"` + value + `"}]`
	return `{"domain":"d","descriptors":[` + entries + first + `},` + entries + second + `}]}`
}

// twoAnswers returns the answer to such a request; a status is a code and what remains.
func twoAnswers(overall, limit string, statuses ...string) string {
	out := "{overallCode:" + overall + ",statuses:["
	for i, one := range statuses {
		code, remaining, _ := strings.Cut(one, " ")
		if i > 0 {
			out += ","
		}
		out += "{code:" + code + ",currentLimit:{" + limit + "}"
		if remaining != "" {
			out += ",limitRemaining:" + remaining
		}
		out += "}"
	}
	return out + "]}"
}

const (
	plain = "{overallCode:OK,statuses:[{code:OK}]}"
	two   = "requestsPerUnit:2,unit:YEAR"
	three = "requestsPerUnit:3,unit:YEAR"
	five  = "name:five,requestsPerUnit:5,unit:YEAR"
)

func TestVectors(t *testing.T) {
	n := startNode(t, vectorRules, nil)
	type step struct{ request, want string }
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"hits are counted by value", []step{
			{oneDescriptor("k", "a", ""), ok(two, "1")}, {oneDescriptor("k", "a", ""), ok(two, "")},
			{oneDescriptor("k", "a", ""), over(two, "")},
			{oneDescriptor("k", "b", ""), ok(two, "1")},
		}},
		{"a request's hits are taken all or nothing", []step{
			{`{"domain":"d","hitsAddend":5,"descriptors":[{"entries":[{"key":"three","value":"2"}]}]}`, over(three, "")},
			{`{"domain":"d","hitsAddend":3,"descriptors":[{"entries":[{"key":"three","value":"2"}]}]}`, ok(three, "")},
		}},
		{"own hits of 0 only look", []step{
			{oneDescriptor("k", "look", `,"hitsAddend":"0"`), ok(two, "2")},
			{oneDescriptor("k", "look", ""), ok(two, "1")},
			{oneDescriptor("k", "look", `,"hitsAddend":"0"`), ok(two, "1")},
			{oneDescriptor("k", "look", `,"hitsAddend":"0"`), ok(two, "1")},
			{oneDescriptor("k", "look", ""), ok(two, "")},
			{oneDescriptor("k", "look", `,"hitsAddend":"0"`), over(two, "")},
		}},
		{"own hits are counted in full", []step{
			{oneDescriptor("three", "own", `,"hitsAddend":"2"`), ok(three, "1")},
			{oneDescriptor("three", "own", `,"hitsAddend":"5"`), over(three, "")},
			{oneDescriptor("three", "own", `,"hitsAddend":"4","isNegativeHits":true`), ok(three, "")},
			{oneDescriptor("three", "own", `,"hitsAddend":"1","isNegativeHits":true`), ok(three, "1")},
		}},
		{"hits are given back", []step{
			{`{"domain":"d","hitsAddend":3,"descriptors":[{"entries":[{"key":"three","value":"4"}]}]}`, ok(three, "")},
			{oneDescriptor("three", "4", `,"hitsAddend":"2","isNegativeHits":true`), ok(three, "2")},
			{oneDescriptor("three", "4", `,"hitsAddend":"2","isNegativeHits":true`), ok(three, "3")},
			{oneDescriptor("three", "4", `,"hitsAddend":"2","isNegativeHits":true`), ok(three, "3")},
			{oneDescriptor("three", "4", `,"hitsAddend":"0"`), ok(three, "3")},
		}},
		{"two descriptors, the second over", []step{
			{`{"domain":"d","hitsAddend":2,"descriptors":[{"entries":[{"key":"five","value":"5"}]},{"entries":[{"key":"k","value":"5"}]}]}`,
				"{overallCode:OK,statuses:[{code:OK,currentLimit:{" + five +
					"},limitRemaining:3},{code:OK,currentLimit:{" + two + "}}]}"},
			{`{"domain":"d","descriptors":[{"entries":[{"key":"five","value":"5"}]},{"entries":[{"key":"k","value":"5"}]}]}`,
				"{overallCode:OVER_LIMIT,statuses:[{code:OK,currentLimit:{" + five +
					"},limitRemaining:3},{code:OVER_LIMIT,currentLimit:{" + two + "}}]}"},
			{oneDescriptor("five", "5", `,"hitsAddend":"0"`), ok(five, "3")},
		}},
		{"an unknown domain", []step{
			{`{"domain":"?","descriptors":[{"entries":[{"key":"k"}]},{"entries":[{"key":"k"}],"limit":{"requestsPerUnit":0,"unit":"HOUR"}}]}`,
				"{overallCode:OK,statuses:[{code:OK},{code:OK}]}"},
			{`{"domain":"?","descriptors":[{"entries":[{"key":"k"}],"isNegativeHits":true,"limit":{"requestsPerUnit":5,"unit":"HOUR"}}]}`, plain},
		}},
		{"an override", []step{
			{oneDescriptor("k", "7", `,"limit":{"requestsPerUnit":5,"unit":"YEAR"}`),
				ok("requestsPerUnit:5,unit:YEAR", "4")},
			{oneDescriptor("k", "7", ""), ok(two, "1")},
			{oneDescriptor("k", "7", `,"limit":{"requestsPerUnit":3,"unit":"YEAR"}`),
				ok("requestsPerUnit:3,unit:YEAR", "1")},
			{oneDescriptor("strange", "7", `,"limit":{"requestsPerUnit":1,"unit":"WEEK"}`),
				ok("requestsPerUnit:1,unit:WEEK", "")},
			{oneDescriptor("strange", "7", `,"limit":{"requestsPerUnit":1,"unit":"WEEK"}`),
				over("requestsPerUnit:1,unit:WEEK", "")},
			{oneDescriptor("strange", "7",
				`,"limit":{"requestsPerUnit":1,"unit":"WEEK"},"isNegativeHits":true`), ok("requestsPerUnit:1,unit:WEEK",
				"1")},
			{oneDescriptor("free", "7", `,"limit":{"requestsPerUnit":0,"unit":"HOUR"}`), over("unit:HOUR", "")},
		}},
		{"an override of nothing takes nothing of the others", []step{
			{`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"0"}]},{"entries":[{"key":"x"}],"limit":{"requestsPerUnit":0,"unit":"DAY"}}]}`,
				"{overallCode:OVER_LIMIT,statuses:[{code:OK,currentLimit:{" + two +
					"},limitRemaining:2},{code:OVER_LIMIT,currentLimit:{unit:DAY}}]}"},
			{oneDescriptor("k", "0", ""), ok(two, "1")},
		}},
		{"the tree", []step{
			{`{"domain":"tree","descriptors":[{"entries":[{"key":"k","value":"v"}]},{"entries":[{"key":"k","value":"vx"}]},{"entries":[{"key":"k","value":"w"}]}]}`,
				"{overallCode:OK,statuses:[{code:OK,currentLimit:{requestsPerUnit:1,unit:YEAR}},{code:OK,currentLimit:{requestsPerUnit:2,unit:YEAR},limitRemaining:1}," +
					"{code:OK,currentLimit:{requestsPerUnit:3,unit:YEAR},limitRemaining:2}]}"},
			{`{"domain":"tree","descriptors":[{"entries":[{"key":"k","value":"v"},{"key":"er"}]}]}`, plain},
			{`{"domain":"tree","descriptors":[{"entries":[{"key":"deep"}]}]}`, plain},
			{`{"domain":"tree","descriptors":[{"entries":[{"key":"deep","value":"1"},{"key":"er","value":"2"}]}]}`, ok("requestsPerUnit:4,unit:YEAR", "3")},
		}},
		{"in shadow", []step{
			{oneDescriptor("shadow", "10", ""), ok("requestsPerUnit:1,unit:YEAR", "")},
			{oneDescriptor("shadow", "10", ""), ok("requestsPerUnit:1,unit:YEAR", "")},
		}},
		{"no limit, none for now, and nothing at all", []step{
			{oneDescriptor("other", "", ""), plain},
			{oneDescriptor("free", "", ""), ok("", "4294967295")},
			{oneDescriptor("none", "", ""), over("unit:YEAR", "")},
			{oneDescriptor("other", "", `,"isNegativeHits":true`), plain},
		}},
		{"one replaces another", []step{
			{`{"domain":"d","descriptors":[{"entries":[{"key":"wide"}]},{"entries":[{"key":"narrow"}]}]}`,
				"{overallCode:OK,statuses:[{code:OK},{code:OK,currentLimit:{requestsPerUnit:9,unit:YEAR},limitRemaining:8}]}"},
			{oneDescriptor("wide", "", ""), ok("name:wide,requestsPerUnit:9,unit:YEAR", "8")},
		}},
		{"quotas refuse together", []step{
			{`{"domain":"d","descriptors":[{"entries":[{"key":"q1"}]},{"entries":[{"key":"q2"}]}]}`,
				"{overallCode:OK,statuses:[{code:OK,currentLimit:{requestsPerUnit:1,unit:YEAR}},{code:OK,currentLimit:{" + two + "},limitRemaining:1}]}"},
			{`{"domain":"d","descriptors":[{"entries":[{"key":"q1"}]},{"entries":[{"key":"q2"}]}]}`,
				"{overallCode:OK,statuses:[{code:OVER_LIMIT,currentLimit:{requestsPerUnit:1,unit:YEAR}},{code:OK,currentLimit:{" + two + "}}]}"},
			{`{"domain":"d","descriptors":[{"entries":[{"key":"q1"}]},{"entries":[{"key":"q2"}]},{"entries":[{"key":"five","value":"q"}]}]}`,
				"{overallCode:OVER_LIMIT,statuses:[{code:OVER_LIMIT,currentLimit:{requestsPerUnit:1,unit:YEAR}},{code:OVER_LIMIT,currentLimit:{" + two + "}}," +
					"{code:OK,currentLimit:{" + five + "},limitRemaining:4}]}"},
			{oneDescriptor("five", "q", ""), ok(five, "4")},
			{oneDescriptor("q1", "", ""), over("requestsPerUnit:1,unit:YEAR", "")},
		}},
		{"a bucket", []step{
			{oneDescriptor("bucket", "", ""), ok("requestsPerUnit:10,unit:YEAR", "3")},
		}},
		{"a descriptor twice", []step{
			{twice("three", "t", "", ""), twoAnswers("OK", three, "OK 2", "OK 1")},
			{twice("three", "t", "", ""), twoAnswers("OVER_LIMIT", three, "OK ", "OVER_LIMIT ")}, // one was left
			{oneDescriptor("three", "t", ""), ok(three, "")},                                     // and none was taken
			{twice("three", "t", "", ""), twoAnswers("OVER_LIMIT", three, "OVER_LIMIT ", "OVER_LIMIT ")},
		}},
		{"a descriptor twice, with hits of its own", []step{
			{twice("five", "t", `,"hitsAddend":"2"`, `,"hitsAddend":"1"`), twoAnswers("OK", five, "OK 3", "OK 2")},
			{twice("five", "t", `,"hitsAddend":"2"`, `,"hitsAddend":"4"`),
				twoAnswers("OVER_LIMIT", five, "OK ", "OVER_LIMIT ")},
			{oneDescriptor("five", "t", `,"hitsAddend":"5","isNegativeHits":true`), ok(five, "1")}, // 9 were taken
		}},
		{"a quota twice: it is not used up by the first", []step{
			{twice("q1", "t", "", ""), twoAnswers("OK", "requestsPerUnit:1,unit:YEAR", "OK ", "OVER_LIMIT ")},
		}},
		{"a limit in shadow twice", []step{
			{twice("shadow", "t", "", ""), twoAnswers("OK", "requestsPerUnit:1,unit:YEAR", "OK ", "OK ")},
			{twice("shadow", "t", "", ""), twoAnswers("OK", "requestsPerUnit:1,unit:YEAR", "OK ", "OK ")},
		}},
		{"a descriptor twice, one of them only looks", []step{
			{twice("three", "l", "", `,"hitsAddend":"0"`), twoAnswers("OK", three, "OK 2", "OK 2")},
			{twice("three", "l", `,"hitsAddend":"0"`, `,"hitsAddend":"0"`), twoAnswers("OK", three, "OK 2", "OK 2")},
		}},
		{"a window that is no unit", []step{
			{oneDescriptor("odd", "", ""),
				"{overallCode:OK,responseHeadersToAdd:[{key:ratelimit-policy,value:\\d.odd\\;q=2;w=900},{key:ratelimit,value:\\d.odd\\;r=1;t=T}]," +
					"statuses:[{code:OK,currentLimit:{name:d.odd,requestsPerUnit:2},limitRemaining:1}]}"},
		}},
	} {
		for i, s := range test.steps {
			if have := n.answer(s.request); times.ReplaceAllString(have, "t=T") != s.want {
				t.Errorf("%s, %d: %s\nhave %s\nwant %s", test.name, i+1, s.request, have, s.want)
			}
		}
	}
}

func TestErrors(t *testing.T) {
	n := startNode(t, vectorRules, nil)
	for _, test := range []struct {
		request string
		code    codes.Code
		want    string
	}{
		{`{"descriptors":[{"entries":[{"key":"k"}]}]}`, codes.InvalidArgument, "rate limit domain must not be empty"},
		{`{"domain":"d"}`, codes.InvalidArgument, "rate limit descriptor list must not be empty"},
		{`{"domain":"d","descriptors":[{"entries":[{"key":"k"}]},{}]}`, codes.InvalidArgument,
			"descriptors[1].entries must not be empty"},
		{oneDescriptor("", "v", ""), codes.InvalidArgument, "descriptors[0].entries[0].key must have 1 to 1024 bytes"},
		{oneDescriptor("k", "v", `,"limit":{"requestsPerUnit":1}`), codes.InvalidArgument,
			"descriptors[0].limit.unit must be a unit of time, SECOND to YEAR"},
		{oneDescriptor("k", "v", `,"limit":{"requestsPerUnit":1,"unit":8}`), codes.InvalidArgument,
			"descriptors[0].limit.unit must be a unit of time, SECOND to YEAR"},
		{oneDescriptor("k", "v", `,"hitsAddend":"9007199254740992"`), codes.InvalidArgument,
			"descriptors[0].hits_addend must not be more than 9007199254740991"},
		{`{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"limit":{"requestsPerUnit":1,"unit":"DAY"}},{"entries":[{"key":"k"}],"limit":{"requestsPerUnit":1,"unit":"HOUR"}}]}`,
			codes.InvalidArgument,
			"descriptors[1].limit differs from descriptors[0].limit, although their entries are equal"},
	} {
		_, err := ask(t, n.conn, "", test.request)
		if s := status.Convert(err); s.Code() != test.code || s.Message() != test.want {
			t.Errorf("%s\nhave %v\nwant %v %s", test.request, err, test.code, test.want)
		}
	}
}

// A node that does not decide yet says why.
func TestNotReady(t *testing.T) {
	n := startNode(t, vectorRules, func(c *apitest.Config) { c.Starting = true })
	_, err := ask(t, n.conn, "", oneDescriptor("k", "a", ""))
	if s := status.Convert(err); s.Code() != codes.Unavailable || s.Message() != "not ready: the node is starting" {
		t.Errorf("have %v", err)
	}
	n.Ready()
	if have := n.answer(oneDescriptor("k", "a", "")); have != ok(two, "1") {
		t.Errorf("have %s", have)
	}
}

// times matches the times in RateLimit headers.
var times = regexp.MustCompile(`t=\d+`)

// stingy is a decider that gives nothing back.
type stingy struct{ *limiter.Limiter }

// GiveBack implements rls.Returner.
func (stingy) GiveBack(*limiter.Query) (*limiter.Usage, error) {
	return nil, fmt.Errorf("give: %w", limiter.ErrNoOwner)
}

// If hits can't be given back, the decision about the other descriptors stands:
// an error would make callers retry and be charged again. A request that only
// gives back gets the error.
func TestGiftsFail(t *testing.T) {
	n := startNode(t, vectorRules, func(c *apitest.Config) { c.Decider = stingy{c.Decider.(*limiter.Limiter)} })
	mixed := `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"a"}]},{"entries":[{"key":"three","value":"a"}],"isNegativeHits":true}]}`
	for _, want := range []string{
		"{overallCode:OK,statuses:[{code:OK,currentLimit:{" + two + "},limitRemaining:1},{code:OK}]}",
		"{overallCode:OK,statuses:[{code:OK,currentLimit:{" + two + "}},{code:OK}]}",
		"{overallCode:OVER_LIMIT,statuses:[{code:OVER_LIMIT,currentLimit:{" + two + "}},{code:OK}]}",
	} {
		if have := n.answer(mixed); have != want {
			t.Errorf("have %s\nwant %s", have, want)
		}
	}
	if _, err := ask(t, n.conn, "",
		oneDescriptor("three", "a", `,"isNegativeHits":true`)); status.Code(err) != codes.Unavailable {
		t.Errorf("a gift alone: have %v", err)
	}
}

// If the rules refuse an override, the error names the descriptor that has it.
func TestErrorNamesTheOverride(t *testing.T) {
	n := startNode(t,
		"version: 1\nenvoy: [{domain: d, descriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 2}}]}]\ninline: {max_limit: 10}\n",
		nil)
	const plain, wrong = `{"entries":[{"key":"k","value":"v"}]}`, `{"entries":[{"key":"own"}],"limit":{"requestsPerUnit":11,"unit":"DAY"}}`
	for descriptors, want := range map[string]string{
		wrong:               "descriptors[0].limit: limits[0].limit: the rules allow no more than 10",
		plain + "," + wrong: "descriptors[1].limit: limits[0].limit: the rules allow no more than 10",
		`{"entries":[{"key":"free"}]},` + plain + "," +
			wrong: "descriptors[2].limit: limits[0].limit: the rules allow no more than 10",
	} {
		_, err := ask(t, n.conn, "", `{"domain":"d","descriptors":[`+descriptors+`]}`)
		if s := status.Convert(err); s.Code() != codes.InvalidArgument || s.Message() != want {
			t.Errorf("%s\nhave %v\nwant %s", descriptors, err, want)
		}
	}
}

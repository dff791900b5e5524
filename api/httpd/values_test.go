package httpd

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
)

// The vectors of values and keys that all clients run, too. What only a client has is left out.
type valueVectors struct {
	Values []struct {
		JSON   string
		For    []string
		Text   string
		Absent bool
		Wrong  bool
		HTTP   api.Code
	}
	Keys []struct {
		JSON       string
		Attributes int
		Limits     bool
		Text       []string
		Error      api.Code
	}
}

func readValueVectors(t *testing.T) (v valueVectors) {
	t.Helper()
	text, err := os.ReadFile("../../client/vectors.json")
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	expect.NoError(t, err)
	return v
}

const valueRules = `
rules:
  - {name: one, key: [user], limits: [{limit: 1000000, per: 1h}]}
  - {name: two, key: [a, b], limits: [{limit: 1000000, per: 1h}]}
  - {name: once, key: [once], limits: [{limit: 1, per: 8760h, algorithm: fixed-window}]}
profiles:
  user: {user: header:X-User}
`

// valuePaths are the ways in which a check reaches a node over HTTP.
var valuePaths = []struct {
	name, path string
	header     map[string]string
	batch      bool
}{
	{"fast path", "/v1/check", nil, false},
	{"slow path", "/v1/check", map[string]string{"Expect": ""}, false},
	{"batch", "/v1/check/batch", nil, true},
	{"reserve", "/v1/reserve", nil, false},
}

// askAllWays makes a check in each of valuePaths. It returns the code or decided_by of each answer.
func askAllWays(t *testing.T, n *node, check string) (results []string) {
	t.Helper()
	for _, one := range valuePaths {
		body := check
		if one.batch {
			body = `{"checks":[` + check + `]}`
		}
		resp, text := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + one.path, Body: body, Header: one.header})
		type answer struct {
			Code    api.Code
			Decided string `json:"decided_by"`
			Error   struct{ Code api.Code }
		}
		var a struct {
			answer
			Results []answer
		}
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			t.Fatalf("%s %s: have %d %q", one.name, check, resp.StatusCode, text)
		}
		if one.batch && len(a.Results) == 1 {
			a.answer = a.Results[0]
		}
		results = append(results, string(a.Code)+string(a.Error.Code)+a.Decided)
		if resp.StatusCode >= 500 {
			t.Errorf("%s %s: have %d %s", one.name, check, resp.StatusCode, text)
		}
	}
	return results
}

// used returns what a subject has used.
func used(t *testing.T, n *node, target string) int {
	t.Helper()
	resp, text := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/usage", Body: target})
	var u struct{ Limits []struct{ Used int } }
	if err := json.Unmarshal([]byte(text), &u); err != nil || resp.StatusCode != http.StatusOK || len(u.Limits) != 1 {
		t.Fatalf("usage of %s: have %d %s", target, resp.StatusCode, text)
	}
	return u.Limits[0].Used
}

func quoteJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func TestValues(t *testing.T) {
	n := startNode(t, nil)
	n.UseRules(valueRules)
	for _, v := range readValueVectors(t).Values {
		if v.JSON == "" || len(v.For) > 0 && !slices.Contains(v.For, "http") {
			continue
		}
		check := `{"attributes":{"user":` + v.JSON + `}}`
		want, subject, before := "", `{"rule":"one","key":`+quoteJSON(v.Text)+`}`, 0
		switch {
		case v.HTTP != "":
			want = string(v.HTTP)
		case v.Wrong:
			want = string(api.BadValue)
		case v.Absent:
			want = "none"
		default:
			want, before = "owner", used(t, n, subject)
		}
		for i, have := range askAllWays(t, n, check) {
			if have != want && !(valuePaths[i].batch && v.HTTP == api.BadJSON) {
				t.Errorf("%s %.80s: have %s, want %s", valuePaths[i].name, check, have, want)
			}
		}
		if want != "owner" {
			continue
		}
		expect.Equal(t, used(t, n, subject)-before, len(valuePaths), "%.80s counted times as %.80q", check, v.Text)
	}
}

func TestValuesOfProfiles(t *testing.T) {
	n := startNode(t, nil)
	n.UseRules(valueRules)
	plain := regexp.MustCompile(`^[!-~]([ -~]*[!-~])?$`)
	for _, v := range readValueVectors(t).Values {
		var text string
		if v.HTTP != "" || json.Unmarshal([]byte(v.JSON), &text) != nil || text != "" && !plain.MatchString(text) {
			continue
		}
		resp, _ := n.Do(apitest.Call{Method: "GET", URL: n.DataURL + "/v1/auth/user",
			Header: map[string]string{"X-User": text}})
		if limited := resp.Header.Get("RateLimit") != ""; resp.StatusCode != http.StatusOK || limited == v.Absent {
			t.Errorf("X-User: %q: have %d, limited %v", text, resp.StatusCode, limited)
		}
		if v.Absent {
			continue
		}
		if used(t, n, `{"rule":"one","key":`+quoteJSON(v.Text)+`}`) == 0 {
			t.Errorf("X-User: %q was not counted as %q", text, v.Text)
		}
	}
}

func TestKeys(t *testing.T) {
	n := startNode(t, nil)
	n.UseRules(valueRules)
	for _, v := range readValueVectors(t).Keys {
		if v.JSON == "" {
			continue
		}
		target := func(key string) string {
			if v.Limits {
				return `{"namespace":"keys","limits":[{"limit":1000000,"per":"1h"}],"key":` + key + `}`
			}
			return `{"rule":"` + []string{"", "one", "two"}[v.Attributes] + `","key":` + key + `}`
		}
		want, subject, before := string(v.Error), target(quoteJSON(v.Text)), 0
		if v.Error == "" {
			want, before = "owner", used(t, n, subject)
		}
		for i, have := range askAllWays(t, n, target(v.JSON)) {
			expect.Equal(t, have, want, "%s %s", valuePaths[i].name, target(v.JSON))
		}
		if v.Error != "" {
			continue
		}
		if have := used(t, n, subject) - before; have != len(valuePaths) {
			t.Errorf("%s counted %d times as %q, want %d", target(v.JSON), have, v.Text, len(valuePaths))
		}
	}
}

// Of many values, valid or not, each is counted for itself: a subject that may
// pass once is refused exactly if its value has come before, however it was
// written. Every error is one of the API.
func TestValuesAreCountedApart(t *testing.T) {
	n := startNode(t, nil)
	n.UseRules(valueRules)
	batches := 200
	if testing.Short() {
		batches = 20
	}
	const perBatch = 500
	random := rand.New(rand.NewPCG(1, 2))
	seen := map[string]bool{}
	for range batches {
		var texts []string
		for range perBatch {
			texts = append(texts, randomValue(random, 0))
		}
		body := `{"checks":[`
		for i, text := range texts {
			body += []string{"", ","}[min(i, 1)] + `{"rule":"once","key":` + text + `}`
		}
		resp, answer := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check/batch", Body: body + "]}"})
		var a struct {
			Results []struct {
				Allowed bool
				Error   struct {
					Status int
					Code   api.Code
					Detail string
				}
			}
		}
		if err := json.Unmarshal([]byte(answer), &a); err != nil || len(a.Results) != perBatch {
			t.Fatalf("have %d %.200s", resp.StatusCode, answer)
		}
		for i, have := range a.Results {
			value, code := valueOf(texts[i])
			if want := code == "" && !seen[value]; have.Error.Code != code ||
				have.Allowed != want || code != "" &&
				(have.Error.Status != 400 || have.Error.Detail == "") {
				t.Fatalf("%s: have %+v, want allowed %v, code %q", texts[i], have, want, code)
			}
			if code == "" {
				seen[value] = true
			}
		}
	}
	if len(seen) < batches*perBatch/20 {
		t.Errorf("only %d different values", len(seen))
	}
}

// valueOf returns the text that counts for a key's value in JSON, by
// encoding/json, or the code of the error.
func valueOf(text string) (string, api.Code) {
	whole := regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)
	var list []json.RawMessage
	var value string
	switch {
	case text[0] == '[' && json.Unmarshal([]byte(text), &list) == nil && len(list) == 1 && list[0][0] != '[':
		return valueOf(string(list[0]))
	case text == "null" || text == `""`:
		return "", api.MissingKey
	case whole.MatchString(text) && text != "-0" && len(text) <= 1024:
		return text, ""
	case json.Unmarshal([]byte(text), &value) == nil && len(value) <= 1024:
		return value, ""
	}
	return "", api.BadValue
}

// randomValue returns a JSON value: mostly short ones, which come again, in
// various notations. Arrays of several values don't fit a key of one.
func randomValue(random *rand.Rand, depth int) string {
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	switch random.IntN(12) {
	case 0:
		return pick("null", "true", "false", `""`, "-0", "0", "1.5", "1e3", "-1.0", "1E-2", "{}",
			`{"a":"b"}`, "[]", "[[]]", `[["a"]]`)
	case 1:
		return strconv.FormatInt(random.Int64()>>random.IntN(64), 10)
	case 2:
		return pick("", "-") + pick("1", "9", "42") + strings.Repeat(pick("0", "7"), random.IntN(40))
	case 3:
		return quoteJSON(strconv.FormatInt(random.Int64()>>random.IntN(64), 10))
	case 4:
		if depth == 0 {
			return "[" + randomValue(random, 1) + "]"
		}
		return `"x"`
	case 5:
		return quoteJSON(strings.Repeat(pick("a", "é", "\x00"), []int{1, 511, 512, 1023, 1024, 1025}[random.IntN(6)]))
	}
	runes := []rune("aAbB01 -.:,/\"\\[]{}\x00\x1f\u007f\u0080é\u200b\ufeff\ufffd日😀")
	var escaped strings.Builder
	for range 1 + random.IntN(1+random.IntN(12)) {
		r := runes[random.IntN(len(runes))]
		if r < utf8.RuneSelf && random.IntN(4) == 0 {
			fmt.Fprintf(&escaped, `\u%04x`, r)
			continue
		}
		one := quoteJSON(string(r))
		escaped.WriteString(one[1 : len(one)-1])
	}
	return `"` + escaped.String() + `"`
}

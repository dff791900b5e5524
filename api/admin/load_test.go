package admin_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/limiter/loads"
	"github.com/rlnode/rlnode/rules/document"
)

const loadRules = `version: 1
rules:
  - {name: plain, key: [], limits: [{limit: 100, per: 1h}]}
  - {name: busy, key: [], limits: [{limit: 100, per: 1h}], adaptive: {source: api, steps: [{above: 0.6, factor: 0.75}, {above: 0.8, factor: 0.5}]}}
`

// startLoads starts a node that follows loads.
func startLoads(t *testing.T) *apitest.Node {
	began := time.Now()
	known := loads.New(loads.Config{Now: func() time.Duration { return time.Since(began) }})
	var follow *limiter.Limiter
	n := startNode(t, func(c *apitest.Config) {
		follow = c.Decider.(*limiter.Limiter)
		follow.FollowLoads(known.Steps, known.Left)
		c.Loads = known
	})
	doc, err := document.Parse([]byte(loadRules))
	expect.NoError(t, err)
	if _, err := n.Rules.Use(doc); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			follow.UpdateSteps()
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			case <-known.Changed():
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	known.Measure(0.25)
	return n
}

// A reported load lowers the limits in answers, headers, usage and metrics, until it expires.
func TestLoad(t *testing.T) {
	t.Parallel()
	n := startLoads(t)
	tell := func(body string) (int, string) {
		resp, text := n.Do(apitest.Call{Method: "POST", URL: n.AdminURL + "/v1/load", Body: body,
			Header: map[string]string{"Authorization": "Bearer secret"}})
		return resp.StatusCode, text
	}
	get := func(path string) string {
		_, text := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + path})
		return text
	}
	if status, text := tell(`{"source":"api","load":0.83,"ttl_ms":1500}`); status != 200 ||
		text != `{"source":"api","load":0.83,"ttl_ms":1500,"rules":["busy"]}`+"\n" {
		t.Errorf("have %d %s", status, text)
	}
	if status, text := tell(`{"source":"nobody follows it","load":1}`); status != 200 ||
		!strings.Contains(text, `"ttl_ms":10000,"rules":[]`) {
		t.Errorf("have %d %s", status, text)
	}
	apitest.Until(t, "the limit is lower", func() bool {
		_, f := n.Check(`{"rule":"busy","peek":true}`)
		return fmt.Sprint(f["limit"]) == "50"
	})
	resp, _ := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check", Body: `{"rule":"busy"}`})
	expect.Equal(t, resp.Header.Get("X-RateLimit-Limit"), "50", "in the header")
	if text := get("/v1/usage?rule=busy"); !strings.Contains(text, `"limit":50,`) ||
		!strings.Contains(text, `"adaptive":{"source":"api","load":0.83,"factor":0.5}`) {
		t.Errorf("have usage %s", text)
	}
	if text := get("/v1/usage?rule=plain"); strings.Contains(text, "adaptive") {
		t.Errorf("have usage %s", text)
	}
	if text := get("/v1/load"); !strings.Contains(text, `{"source":"api","load":0.83,"ttl_ms":`) ||
		!strings.Contains(text, `{"source":"node-cpu","load":0.25}`) ||
		!strings.Contains(text, `"rules":[{"rule":"busy","source":"api","factor":0.5}]`) {
		t.Errorf("have loads %s", text)
	}
	metrics := get("/metrics")
	for _, want := range []string{`rlnode_load{source="api"} 0.83`,
		`rlnode_load{source="node-cpu"} 0.25`, `rlnode_adaptive_factor{rule="busy"} 0.5`} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	if strings.Contains(metrics, "nobody") {
		t.Error("the metrics have a label that a caller chose")
	}
	apitest.Until(t, "the load expires", func() bool {
		_, f := n.Check(`{"rule":"busy","peek":true}`)
		return fmt.Sprint(f["limit"]) == "100"
	})
	if text := get("/v1/usage?rule=busy"); !strings.Contains(text,
		`"adaptive":{"source":"api","load":null,"factor":1}`) {
		t.Errorf("have usage %s", text)
	}
}

func TestLoadRefuses(t *testing.T) {
	n := startLoads(t)
	for _, tt := range []struct {
		body  string
		code  api.Code
		field string
	}{
		{``, api.BadJSON, "empty"}, {`[]`, api.BadJSON, "object"}, {`{}`, api.MissingKey, "source"},
		{`{"source":"api"}`, api.MissingKey, "load"}, {`{"load":1}`, api.MissingKey, "source"},
		{`{"source":"api","load":NaN}`, api.BadJSON, ""},
		{`{"source":"api","load":Infinity}`, api.BadJSON, ""},
		{`{"source":"api","load":-0.1}`, api.BadValue, "load"},
		{`{"source":"api","load":1000.1}`, api.BadValue, "load"},
		{`{"source":"api","load":1e999}`, api.BadValue, "load"},
		{`{"source":"api","load":"1"}`, api.BadValue, "load"},
		{`{"source":"api","load":null}`, api.BadValue, "load"},
		{`{"source":"node-cpu","load":1}`, api.BadValue, "source"},
		{`{"source":"","load":1}`, api.BadValue, "source"},
		{`{"source":"` + strings.Repeat("a", 129) + `","load":1}`, api.BadValue, "source"},
		{`{"source":7,"load":1}`, api.BadValue, "source"},
		{"{\"source\":\"é\xff\",\"load\":1}", api.BadJSON, "at byte 13 of 25"},
		{`{"source":"api","load":1,"ttl_ms":99}`, api.BadValue, "from 100 to 3600000"},
		{`{"source":"api","load":1,"ttl_ms":3600001}`, api.BadValue, "from 100 to 3600000"},
		{`{"source":"api","load":1,"ttl_ms":9007199254740991}`, api.BadValue, "ttl_ms"},
		{`{"source":"api","load":1,"ttl_ms":1e3}`, api.BadValue, "ttl_ms"},
		{`{"source":"api","load":1,"ttl_ms":-1}`, api.BadValue, "ttl_ms"},
		{`{"source":"api","load":1,"more":2}`, api.UnknownField, "more"},
		{`{"source":"api","load":1,"load":1}`, api.BadJSON, "twice"},
		{`{"source":"api","load":1} {}`, api.BadJSON, ""},
		{`{"source":"api","load":1` + strings.Repeat(" ", 5000) + `}`, api.TooLarge, "4096"},
	} {
		resp, text := n.Do(apitest.Call{Method: "POST", URL: n.AdminURL + "/v1/load", Body: tt.body,
			Header: map[string]string{"Authorization": "Bearer secret"}})
		if have := apitest.NoteCode([]byte(text)); resp.StatusCode < 400 || have != tt.code ||
			!strings.Contains(text, tt.field) {
			t.Errorf("%.80q: have %d %s, want %s about %q", tt.body, resp.StatusCode, text, tt.code, tt.field)
		}
	}
	if _, text := n.Do(apitest.Call{Method: "GET",
		URL: n.AdminURL + "/v1/load"}); strings.Contains(text, `"source":"api","load"`) {
		t.Errorf("something was taken: %s", text)
	}
}

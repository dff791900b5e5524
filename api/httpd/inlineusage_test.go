package httpd

import (
	"strings"
	"testing"
)

// Usage, adjustments and resets on the data plane, for a rule's subject and for
// one with inline limits.
func TestUsageAndReset(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	const limits = `"limits":[{"limit":9,"per":"1h","algorithm":"fixed-window","name":"x"},{"limit":100,"per_ms":60000,"unit":"tokens","algorithm":"sliding-window-log"}]`
	for _, tt := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"check", `{"rule":"a","key":"u","cost":2}`, 200, `"used":2,`},
		{"usage", `{"rule":"a","key":"u"}`, 200,
			`{"rule":"a","key":"u","limits":[{"name":"a","algorithm":"token-bucket","unit":"requests","limit":5,"window_ms":3600000,"used":2,"remaining":3,`},
		{"adjust", `{"rule":"b","key":"u","costs":{"tokens":30,"requests":1}}`, 200,
			`{"rule":"b","key":"u","costs":{"tokens":30,"requests":1},"limits":[`},
		{"adjust", `{"rule":"b","key":"u","cost":1,"costs":{"tokens":-5}}`, 200,
			`"cost":1,"costs":{"tokens":-5},"limits":[`},
		{"usage", `{"rule":"b","key":"u"}`, 200, `"used":25,"remaining":75,`},
		{"reset", `{"rule":"b","key":"u"}`, 200, `"used":0,"remaining":100,`},
		{"check", `{"namespace":"n","key":"u",` + limits + `,"costs":{"requests":3,"tokens":7}}`, 200, `"used":`},
		{"usage", `{"namespace":"n","key":"u",` + limits + `}`, 200,
			`{"namespace":"n","key":"u","limits":[{"name":"x","algorithm":"fixed-window","unit":"requests","limit":9,"window_ms":3600000,"used":3,"remaining":6,`},
		{"usage", `{"namespace":"n","key":["u"]}`, 200, `"used":7,"remaining":93,`},
		{"usage", `{"key":"u",` + limits + `}`, 200,
			`{"namespace":"inline","key":"u","limits":[{"name":"x","algorithm":"fixed-window","unit":"requests","limit":9,"window_ms":3600000,"used":0,`},
		{"adjust",
			`{"namespace":"n","key":"u",` + limits + `,"cost":-1,"costs":{"tokens":200},"request_id":"id"}`,
			200, `"used":207,"remaining":0,`},
		{"adjust",
			`{"namespace":"n","key":"u",` + limits + `,"cost":-1,"costs":{"tokens":200},"request_id":"id"}`,
			200, `"used":207,"remaining":0,`},
		{"adjust",
			`{"namespace":"n","key":"u",` + limits + `,"cost":-2,"costs":{"tokens":200},"request_id":"id"}`,
			409, `"request-id-reused"`},
		{"reset", `{"namespace":"n","key":"u","request_id":"id"}`, 409, `"request-id-reused"`},
		{"reset", `{"namespace":"n","key":"u","request_id":"id2"}`, 200,
			`{"namespace":"n","key":"u","limits":[],"blocked_until_ms":0}`},
		{"usage", `{"namespace":"n","key":"u",` + limits + `}`, 200, `"used":0,"remaining":9,`},
		{"usage", `{"namespace":"n","key":"u"}`, 200, `"limits":[],"blocked_until_ms":0}`},

		{"usage", `{}`, 400,
			`rule is missing: give rule and key, or key and limits; for all counters of a key, namespace and key`},
		{"usage", `{"key":"u"}`, 400, `(calls without one are in inline)`},
		{"reset", `{"key":"u"}`, 400, `"missing-key"`},
		{"usage", `{"namespace":"inline","key":"u"}`, 200, `{"namespace":"inline","key":"u","limits":[`},
		{"usage", `{"rule":"a"}`, 400, `key is missing`},
		{"usage", `{"namespace":"n"}`, 400, `key is missing`},
		{"usage", `{"rule":"nope","key":"u"}`, 404, `"unknown-rule"`},
		{"usage", `{"rule":"a","key":"u","namespace":"n"}`, 400, `namespace and limits exclude rule`},
		{"usage", `{"rule":"a","key":"u",` + limits + `}`, 400, `namespace and limits exclude rule`},
		{"usage", `{"namespace":"n","key":"u","limits":[{"limit":5,"per":"1y"}]}`, 400, `limits[0].per`},
		{"usage", `{"namespace":"n","key":"u","cost":1}`, 400, `"unknown-field"`},
		{"usage", `{"rule":"a","key":"u","request_id":"x"}`, 400, `"unknown-field"`},
		{"reset", `{"rule":"a","key":"u","request_id":"` + strings.Repeat("x", 65) + `"}`, 400,
			`request_id must have 1 to 64 bytes`},
		{"reset", `{"rule":"a","key":"u","cost":1}`, 400, `"unknown-field"`},
		{"adjust", `{"rule":"a","key":"u"}`, 400, `cost, and each of costs, must be a whole number`},
		{"adjust", `{"rule":"a","key":"u","costs":{}}`, 400, `each of costs, must be a whole number other than 0`},
		{"adjust", `{"rule":"b","key":"u","costs":{"tokens":0}}`, 400, `must be a whole number other than 0`},
		{"adjust", `{"rule":"a","key":"u","cost":1,"costs":{"requests":1}}`, 400,
			`cost and costs.requests exclude each other`},
		{"adjust", `{"rule":"a","key":"u","costs":{"tokens":1}}`, 400,
			`costs: adjust \"a\": there is no limit in the unit \"tokens\"`},
		{"adjust", `{"namespace":"n","key":"u","cost":1}`, 400, `limits is missing`},
	} {
		if have, text := n.post("/v1/"+tt.path, tt.body); have != tt.status || !strings.Contains(text, tt.want) {
			t.Errorf("%s %s: have %d %s\nwant %d %s", tt.path, tt.body, have, text, tt.status, tt.want)
		}
	}
}

package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// inlineNamed reports whether a body has a field, at any depth, that the
// reference parser does not know.
func inlineNamed(body []byte) bool {
	d := json.NewDecoder(bytes.NewReader(body))
	for {
		token, err := d.Token()
		if err != nil {
			return false
		}
		if name, ok := token.(string); ok &&
			fieldOf(name)&(fieldNamespace|fieldLimits|fieldConsistency|fieldShadow|fieldMode|fieldSubjects) != 0 {
			return true
		}
	}
}

func TestInlineBodies(t *testing.T) {
	limit := `{"limit":5,"per":"1m"}`
	many := func(n int, one string) string { return strings.Repeat(one+",", n-1) + one }
	for body, want := range map[string]struct {
		code api.Code
		why  string
	}{
		`{"key":"k","limits":[` + limit + `]}`: {},
		`{"namespace":"n","key":["a","b"],"limits":[{"limit":5,"per_ms":60000,"burst":9,"algorithm":"token-bucket","unit":"u","name":"x","tz":"UTC","from":"clock"}],"cost":2,"mode":"count","consistency":"exact","shadow":true,"detail":true,"wait":true}`: {},
		`{"key":[],"limits":[` + many(8, limit) + `]}`:                                                      {},
		`{"subjects":[` + many(16, `{"key":"k","limits":[`+limit+`],"costs":{"u":3},"mode":"peek"}`) + `]}`: {},
		`{"limits":[` + limit +
			`]}`: {api.MissingKey,
			"key is missing"},
		`{"key":"k","namespace":"n"}`: {api.MissingKey, "limits is missing"},
		`{"key":"k","limits":[]}`:     {api.BadValue, "limits must have at least one"},
		`{"key":"k","limits":{}}`:     {api.BadValue, "limits must be an array"},
		`{"key":"k","limits":[5]}`:    {api.BadValue, "limits[0] must be an object"},
		`{"key":"k","limits":[5,{}]}`: {api.BadValue, "limits[0] must be an object"},
		`{"key":"k","limits":[[null],{"limit":1,"per":"1s"},{"limit":0.5}]}`: {
			api.BadValue, "limits[0] must be an object"},
		`{"key":"k","limits":[` + many(9, limit) +
			`]}`: {api.BadValue,
			"limits: at most 8 are allowed"},
		`{"key":"k","limits":[{"per":"1m"}]}`: {api.MissingKey, "limits[0].limit is missing"},
		`{"key":"k","limits":[` + limit +
			`,{"limit":5}]}`: {api.MissingKey,
			"limits[1].per is missing"},
		`{"key":"k","limits":[{"limit":-1,"per":"1m"}]}`: {api.BadValue,
			"limits[0].limit must be a whole number"},
		`{"key":"k","limits":[{"limit":1.5,"per":"1m"}]}`: {api.BadValue,
			"limits[0].limit must be a whole number"},
		`{"key":"k","limits":[{"limit":5,"per":60}]}`: {api.BadValue, "limits[0].per must be a string"},
		`{"key":"k","limits":[{"limit":5,"per":""}]}`: {api.BadValue, "limits[0].per must have 1 to"},
		`{"key":"k","limits":[{"limit":5,"per_ms":"60"}]}`: {api.BadValue,
			"limits[0].per_ms must be a whole number"},
		`{"key":"k","limits":[{"limit":5,"per":"1m","every":1}]}`: {api.UnknownField, `no field "every" here`},
		`{"key":"k","limits":[{"limit":5,"limit":6,"per":"1m"}]}`: {api.BadJSON, "limits[0].limit is given twice"},
		`{"key":"k","limits":[` + limit +
			`],"mode":"take"}`: {api.BadValue,
			"mode must be check, peek, count or at_most"},
		`{"key":"k","limits":[` + limit +
			`],"mode":"peek","peek":true}`: {api.BadValue,
			"peek and mode exclude each other"},
		`{"key":"k","limits":[` + limit +
			`],"consistency":"local"}`: {api.BadValue,
			"consistency must be hybrid or exact"},
		`{"key":"k","limits":[` + limit +
			`],"shadow":1}`: {api.BadValue,
			"shadow must be true or false"},
		`{"key":"k","limits":[` + limit +
			`],"rule":"r"}`: {api.BadValue,
			"exclude rule and attributes"},
		`{"limits":[` + limit +
			`],"attributes":{"a":"b"}}`: {api.BadValue,
			"exclude rule and attributes"},
		`{"key":"k","limits":[` + limit +
			`],"cost":1,"costs":{"requests":1}}`: {api.BadValue,
			"cost and costs.requests exclude each other"},
		`{"namespace":"","key":"k","limits":[` + limit +
			`]}`: {api.BadValue,
			"namespace must have 1 to"},
		`{"subjects":[]}`:                                   {api.BadValue, "subjects must have at least one"},
		`{"subjects":{}}`:                                   {api.BadValue, "subjects must be an array"},
		`{"subjects":["x"]}`:                                {api.BadValue, "subjects[0] must be an object"},
		`{"subjects":[{"key":"k"}]}`:                        {api.MissingKey, "subjects[0].limits is missing"},
		`{"subjects":[{"limits":[` + limit + `]}]}`:         {api.MissingKey, "subjects[0].key is missing"},
		`{"subjects":[{"key":"k","limits":[{"limit":5}]}]}`: {api.MissingKey, "subjects[0].limits[0].per is missing"},
		`{"subjects":[{"key":"k","limits":[` + limit + `],"detail":true}]}`: {api.UnknownField,
			`no field "detail" here`},
		`{"subjects":[` + many(17, `{"key":"k","limits":[`+limit+`]}`) + `]}`: {api.BadValue,
			"subjects: at most 16 are allowed"},
		`{"subjects":[{"key":"k","limits":[` + limit + `]}],"cost":1}`:    {api.BadValue, "subjects excludes"},
		`{"subjects":[{"key":"k","limits":[` + limit + `]}],"peek":true}`: {api.BadValue, "subjects excludes"},
	} {
		var s Decoder
		var r Request
		e := s.Read([]byte(body), CheckForm, &r)
		if e == nil && want.code != "" || e != nil && (e.Code != want.code || !strings.Contains(e.Detail, want.why)) {
			t.Errorf("%s: have %v, want %s %q", body, e, want.code, want.why)
		}
	}
}

// Every field is decoded into its place, and none is left over from the previous request.
func TestInlineFields(t *testing.T) {
	var s Decoder
	var r Request
	read := func(body string) {
		t.Helper()
		r.Reset()
		if e := s.Read([]byte(body), CheckForm, &r); e != nil {
			t.Fatal(e)
		}
	}
	read(`{"subjects":[{"namespace":"n","key":["a","b"],"limits":[{"limit":5,"per":"1m","algorithm":"a","burst":9,"unit":"u","name":"x","tz":"z","from":"f"},` +
		`{"limit":6,"per_ms":7}],"costs":{"u":3},"mode":"count","consistency":"exact","shadow":true},{"key":"c","limits":[{"limit":8,"per":"day"}]}]}`)
	one, two := r.Subjects[0], r.Subjects[1]
	first := document.InlineLimit{Limit: 5, Per: "1m", Algorithm: "a", Burst: 9, Unit: "u", Name: "x", TZ: "z", From: "f"}
	if one.Namespace != "n" || !slices.Equal(one.Key, []string{"a", "b"}) ||
		!slices.Equal(one.Limits, []document.InlineLimit{first, {Limit: 6, PerMS: 7}}) ||
		len(one.Costs) != 1 || one.Costs[0].Cost != 3 || one.Mode != counters.CountMode || !one.Exact || !one.Shadow {
		t.Errorf("have %+v", one)
	}
	if two.Namespace != "" || !slices.Equal(two.Key, []string{"c"}) ||
		!slices.Equal(two.Limits, []document.InlineLimit{{Limit: 8, Per: "day"}}) ||
		len(two.Costs) != 0 || two.Mode != counters.CheckMode || two.Exact || two.Shadow {
		t.Errorf("have %+v", two)
	}
	read(`{"key":"d","limits":[{"limit":1,"per":"1s"}],"cost":4}`)
	if one := r.Subjects[0]; len(r.Subjects) != 1 || one.Namespace != "" ||
		!slices.Equal(one.Key, []string{"d"}) || len(one.Limits) != 1 ||
		one.Limits[0] != (document.InlineLimit{Limit: 1, Per: "1s"}) || len(one.Costs) != 1 ||
		one.Costs[0].Cost != 4 || one.Mode != counters.CheckMode || one.Exact || one.Shadow {
		t.Errorf("have %+v", r.Subjects)
	}
	if read(`{"rule":"r","key":"k"}`); len(r.Subjects) != 0 || !r.ByKey {
		t.Errorf("have %+v", r.Query)
	}
}

// FuzzInlineRequest: any body is either refused with a detail or within all
// bounds, and a reused Request decodes it the same way.
func FuzzInlineRequest(f *testing.F) {
	f.Add([]byte(`{"namespace":"n","key":["a"],"limits":[{"limit":5,"per":"1m","from":"first"},{"limit":1,"per_ms":9}],"mode":"count"}`))
	f.Add([]byte(`{"subjects":[{"key":"a","limits":[{"limit":5,"per":"1m"}],"cost":2},{"key":[],"limits":[{"limit":5,"per":"1m"}],"costs":{"u":1}}]}`))
	f.Add([]byte(`{"subjects":[{"key":"a","limits":[{"limit":5,"per":"1\u006d"}]}],"detail":true}`))
	var s Decoder
	var used Request
	f.Fuzz(func(t *testing.T, body []byte) {
		var fresh Request
		used.Reset()
		e, again := s.Read(bytes.Clone(body), CheckForm, &fresh), s.Read(bytes.Clone(body), CheckForm, &used)
		if fmt.Sprint(e) != fmt.Sprint(again) {
			t.Fatalf("%q: %v, and then %v", body, e, again)
		}
		if e != nil {
			if e.Detail == "" {
				t.Fatalf("%q: no detail", body)
			}
			return
		}
		if have, want := fmt.Sprintf("%+v", used.Subjects), fmt.Sprintf("%+v", fresh.Subjects); have != want {
			t.Fatalf("%q: have %s, want %s", body, have, want)
		}
		if len(fresh.Subjects) > rules.MaxInlineSubjects {
			t.Fatalf("%q: %d subjects", body, len(fresh.Subjects))
		}
		for _, one := range fresh.Subjects {
			if len(one.Limits) < 1 || len(one.Limits) > rules.MaxInlineLimits ||
				len(one.Namespace) > MaxValue || len(one.Key) > document.MaxAttributes ||
				len(one.Costs) > limiter.MaxCosts+1 {
				t.Fatalf("%q: have %+v", body, one)
			}
		}
	})
}

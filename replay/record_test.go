package replay

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules/document"
)

// attributeMap returns the attributes of r as a map.
func (r *record) attributeMap() map[string]string {
	m := make(map[string]string)
	for _, a := range r.attributes {
		m[a.Name] = a.Value
	}
	return m
}

func TestAccessLogLine(t *testing.T) {
	const at = "[17/May/2015:10:05:03 +0000]"
	type attrs = map[string]string
	for _, test := range []struct {
		have string
		want attrs
	}{
		{`192.0.2.1 - - ` + at + ` "GET /a/b?x=1 HTTP/1.1" 200 203 "http://from.example/" "agent 1.0 (x; y)"`,
			attrs{"ip": "192.0.2.1", "method": "GET", "endpoint": "/a/b", "status": "200",
				"referer": "http://from.example/", "user_agent": "agent 1.0 (x; y)"}},
		{`192.0.2.1 - ann ` + at + ` "POST /a HTTP/1.1" 404 -`,
			attrs{"ip": "192.0.2.1", "user": "ann", "method": "POST", "endpoint": "/a", "status": "404"}},
		{`2001:db8::7 - - ` + at + ` "GET / HTTP/2.0" 200 1 "-" "-"`,
			attrs{"ip": "2001:db8::7", "method": "GET", "endpoint": "/", "status": "200"}},
		{`192.0.2.1 ident Ann B. [x] ` + at + ` "GET / HTTP/1.1" 200 1`,
			attrs{"ip": "192.0.2.1", "user": "Ann B. [x]", "method": "GET", "endpoint": "/", "status": "200"}},
		{`192.0.2.1 - "" ` + at + ` "GET / HTTP/1.1" 200 1`,
			attrs{"ip": "192.0.2.1", "method": "GET", "endpoint": "/", "status": "200"}},
		{`host.example.com - - ` + at + ` "-" 408 0`, attrs{"ip": "host.example.com", "status": "408"}},
		{`192.0.2.1 - - ` + at + ` "GET" 400 0`, attrs{"ip": "192.0.2.1", "method": "GET", "status": "400"}},
		{`192.0.2.1 - - ` + at + ` "GET HTTP/1.1" 400 0`, attrs{"ip": "192.0.2.1", "method": "GET", "status": "400"}},
		{`192.0.2.1 - - ` + at + ` "\x16\x03\x01\x02\x00" 400 226 "-" "-"`, attrs{"ip": "192.0.2.1", "status": "400"}},
		{`192.0.2.1 - - ` + at + " \"\x16\x03\xff\xfe\" 400 226", attrs{"ip": "192.0.2.1", "status": "400"}},
		{`192.0.2.1 - - ` + at + ` "" 400 0`, attrs{"ip": "192.0.2.1", "status": "400"}},
		{`192.0.2.1 - - ` + at, attrs{"ip": "192.0.2.1"}},
		{`192.0.2.1 - - ` + at + ` "GET /cut/sho`, attrs{"ip": "192.0.2.1", "method": "GET", "endpoint": "/cut/sho"}},
		{`192.0.2.1 - - ` + at + ` "GET /a\"b\\c HTTP/1.1" 200 1 "-" "say \"hi\""`,
			attrs{"ip": "192.0.2.1", "method": "GET", "endpoint": `/a"b\c`, "status": "200", "user_agent": `say "hi"`}},
		{`192.0.2.1 - - ` + at + ` "GET /\x41\x4g HTTP/1.1" 200 1`,
			attrs{"ip": "192.0.2.1", "method": "GET", "endpoint": `/A\x4g`, "status": "200"}},
		{`192.0.2.1 - - ` + at + ` "GET /with a space HTTP/1.1" 200 1`,
			attrs{"ip": "192.0.2.1", "method": "GET", "endpoint": "/with a space", "status": "200"}},
		{`192.0.2.1 - - ` + at + ` "GET http://proxied.example/p?q HTTP/1.1" 200 1`,
			attrs{"ip": "192.0.2.1", "method": "GET", "endpoint": "/p", "status": "200"}},
		{`192.0.2.1 - - ` + at + ` "GET /go?to=http://x/y HTTP/1.1" 200 1`,
			attrs{"ip": "192.0.2.1", "method": "GET", "endpoint": "/go", "status": "200"}},
		{`192.0.2.1 - - ` + at + ` "GET /a" HTTP/1.1" xyz`,
			attrs{"ip": "192.0.2.1", "method": "GET", "endpoint": "/a"}},
		{"\ufeff  192.0.2.1 - - " + at + " \"GET / HTTP/1.1\" 200 1\r",
			attrs{"ip": "192.0.2.1", "method": "GET", "endpoint": "/", "status": "200"}},
		{`192.0.2.1 - - ` + at + ` "GET /` + strings.Repeat("x", 5000) + ` HTTP/1.1" 200 1`,
			attrs{"ip": "192.0.2.1", "method": "GET",
				"endpoint": "/" + strings.Repeat("x", document.MaxValueBytes-1), "status": "200"}},
	} {
		var r record
		if err := r.parse(test.have); err != nil {
			t.Errorf("%s: %v", test.have, err)
			continue
		}
		if want := time.Date(2015, 5, 17, 10, 5, 3, 0, time.UTC).UnixNano(); r.time != want {
			t.Errorf("%s: have time %d, want %d", test.have, r.time, want)
		}
		if have := r.attributeMap(); !maps.Equal(have, test.want) {
			t.Errorf("%.200s:\nhave %.300q\nwant %.300q", test.have, have, test.want)
		}
	}
}

func TestUnreadableLine(t *testing.T) {
	const rest = ` "GET / HTTP/1.1" 200 1`
	for _, test := range []struct{ have, want string }{
		{"", "empty"},
		{"   \r", "empty"},
		{"garbage", "address"},
		{"not-an-address - - [17/May/2015:10:05:03 +0000]" + rest, "address"},
		{"999.1.1.1 - - [17/May/2015:10:05:03 +0000]" + rest, "address"},
		{"- - - [17/May/2015:10:05:03 +0000]" + rest, "address"},
		{"192.0.2.1", "no time"},
		{"192.0.2.1 - - " + rest, "no time"},
		{"192.0.2.1 - - [17/May/2015:10:05", "no time"},
		{"192.0.2.1 - - [17/Mai/2015:10:05:03 +0000]" + rest, "no time"},
		{"192.0.2.1 - - [31/Feb/2015:10:05:03 +0000]" + rest, "no time"},
		{"192.0.2.1 - - [00/May/2015:10:05:03 +0000]" + rest, "no time"},
		{"192.0.2.1 - - [17/May/2015:24:05:03 +0000]" + rest, "no time"},
		{"192.0.2.1 - - [17/May/2015:10:60:03 +0000]" + rest, "no time"},
		{"192.0.2.1 - - [17/May/2015:10:05:03 *0000]" + rest, "no time"},
		{"192.0.2.1 - - [17/May/2015:10:05:03 +9999]" + rest, "no time"},
		{"192.0.2.1 - - [-1/May/2015:10:05:03 +0000]" + rest, "no time"},
		{"192.0.2.1 - - [17/May/1950:10:05:03 +0000]" + rest, "1970"},
		{"192.0.2.1 - - [17/May/9999:10:05:03 +0000]" + rest, "1970"},
		{"192.0.2.1 - - [" + strings.Repeat("[", 100) + "17/May/2015:10:05:03 +0000]" + rest, "no time"},
		{`{`, "ends"},
		{`{}`, `"time" is missing`},
		{`{"time":1}`, `"attributes" is missing`},
		{`{"attributes":{"ip":"192.0.2.1"}}`, `"time" is missing`},
		{`{"time":"yesterday","attributes":{}}`, "RFC 3339"},
		{`{"time":"9999-01-01T00:00:00Z","attributes":{}}`, "1970"},
		{`{"time":"1969-01-01T00:00:00Z","attributes":{}}`, "1970"},
		{`{"time":-1,"attributes":{}}`, "Unix time"},
		{`{"time":1e9,"attributes":{}}`, "Unix time"},
		{`{"time":123456789012345,"attributes":{}}`, "Unix time"},
		{`{"time":null,"attributes":{}}`, "expected a number"},
		{`{"time":1,"attributes":{},"time":2}`, "is given twice"},
		{`{"time":1,"attributes":[]}`, "expected"},
		{`{"time":1,"attributes":{"a":1}}`, `attribute "a"`},
		{`{"time":1,"attributes":{"a":"1","a":"2"}}`, "is given twice"},
		{`{"time":1,"attributes":{"":"1"}}`, "name"},
		{`{"time":1,"attributes":{"a":"` + strings.Repeat("x", 1025) + `"}}`, "1025 bytes"},
		{`{"time":1,"attributes":{` + manyAttributes(33) + `}}`, "more than 32"},
		{`{"time":1,"attributes":{},"cost":1.5}`, "not an integer"},
		{`{"time":1,"attributes":{},"cost":-1}`, "not an integer"},
		{`{"time":1,"attributes":{},"cost":01}`, "not a number"},
		{`{"time":1,"attributes":{},"cost":9007199254740992}`, "not an integer"},
		{`{"time":1,"attributes":{},"cost":99999999999999999999}`, "not an integer"},
		{`{"time":1,"attributes":{},"cost":1,"costs":{"requests":1}}`, "is given twice"},
		{`{"time":1,"attributes":{},"costz":1}`, "unknown field"},
		{`{"time":1,"attributes":{}} x`, "unexpected text"},
		{`{"time":1,"attributes":{"a":"\ud800"}}`, "escape"},
		{`{"time":1,"attributes":{"a":"\q"}}`, "escape"},
		{`{"time":1,"attributes":{"a":"`, "unterminated"},
		{"{\"time\":1,\"attributes\":{\"a\":\"\xff\"}}", "UTF-8"},
		{"{\"time\":1,\"attributes\":{\"a\":\"\t\"}}", "control"},
	} {
		var r record
		err := r.parse(test.have)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.100s: have %v, want %q", test.have, err, test.want)
		}
	}
}

func manyAttributes(n int) string {
	var parts []string
	for i := range n {
		parts = append(parts, fmt.Sprintf(`"a%d":"x"`, i))
	}
	return strings.Join(parts, ",")
}

func TestJSONLine(t *testing.T) {
	for _, test := range []struct {
		have  string
		time  int64
		attrs map[string]string
		costs []limiter.UnitCost
	}{
		{`{"time":"2015-05-17T12:05:03+02:00","attributes":{"ip":"192.0.2.1"}}`, 1431857103e9,
			map[string]string{"ip": "192.0.2.1"}, nil},
		{`{"time":"2015-05-17T10:05:03.25Z","attributes":{}}`, 1431857103250e6, nil, nil},
		{` { "time" : 1431857103 , "attributes" : { "a" : "b" , "c" : "" } } `, 1431857103e9,
			map[string]string{"a": "b", "c": ""}, nil},
		{`{"time":1431857103.5,"attributes":{}}`, 14318571035e8, nil, nil},
		{`{"time":1431857103250,"attributes":{}}`, 1431857103250e6, nil, nil},
		{`{"time":1431857103250.000001999,"attributes":{}}`, 1431857103250e6 + 1, nil, nil},
		{`{"time":0,"attributes":{"a":"\u0041\n\"\ud83d\ude00/"}}`, 0, map[string]string{"a": "A\n\"😀/"}, nil},
		{`{"time":1,"attributes":{},"cost":0}`, 1e9, nil, []limiter.UnitCost{{Unit: "requests", Cost: 0}}},
		{`{"time":1,"attributes":{},"cost":9007199254740991}`, 1e9, nil,
			[]limiter.UnitCost{{Unit: "requests", Cost: 1<<53 - 1}}},
		{`{"costs":{"tokens":900,"requests":2},"attributes":{},"time":1}`, 1e9, nil,
			[]limiter.UnitCost{{Unit: "tokens", Cost: 900}, {Unit: "requests", Cost: 2}}},
	} {
		var r record
		if err := r.parse(test.have); err != nil {
			t.Errorf("%s: %v", test.have, err)
			continue
		}
		expect.Equal(t, r.time, test.time, "%s: time", test.have)
		if have := r.attributeMap(); !maps.Equal(have, test.attrs) && len(have)+len(test.attrs) > 0 {
			t.Errorf("%s: have %q, want %q", test.have, have, test.attrs)
		}
		if have, want := fmt.Sprint(r.costs), fmt.Sprint(test.costs); have != want {
			t.Errorf("%s: have %s, want %s", test.have, have, want)
		}
	}
}

func FuzzLine(f *testing.F) {
	for _, seed := range []string{
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a?b HTTP/1.1" 200 1 "-" "x\"y\x41"`,
		`::1 - a b [29/Feb/2016:23:59:60 -1200] "CONNECT h:1 HTTP/1.1`,
		`{"time":"2015-05-17T12:05:03+02:00","attributes":{"ip":"192.0.2.1","x":"\ud83d\ude00"},"costs":{"tokens":1}}`,
		`{"time":1431857103.5,"attributes":{},"cost":1}`,
		"\xff[[[[", `{"time":`, `{"a":{"b":{`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		var r, back record
		if r.parse(line) != nil {
			return
		}
		if r.time < minTime || r.time > maxTime {
			t.Fatalf("time %d is out of range", r.time)
		}
		r.input, r.line = 3, 1<<40
		packed := r.appendPacked(nil)
		expect.NoError(t, back.unpack(packed))
		if have, want := fmt.Sprint(back.input, back.line, back.attributes,
			back.costs), fmt.Sprint(r.input, r.line, r.attributes, r.costs); have != want {
			t.Fatalf("packed and unpacked: have %q, want %q", have, want)
		}
		seen := make(map[string]bool)
		for _, a := range r.attributes {
			if seen[a.Name] || len(a.Value) > document.MaxValueBytes {
				t.Fatalf("attribute %q twice, or %d bytes long", a.Name, len(a.Value))
			}
			seen[a.Name] = true
		}
		if strings.HasPrefix(trimLine(line), "{") && !utf8.ValidString(line) {
			t.Fatal("JSON that is not UTF-8 was read")
		}
	})
}

func FuzzUnpack(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 1, 1, 1, 'a', 1, 'b', 1, 1, 'u', 7})
	f.Add([]byte{0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var r record
		if err := r.unpack(b); err == nil && len(r.attributes)+len(r.costs) > len(b) {
			t.Fatalf("%d attributes in %d bytes", len(r.attributes), len(b))
		}
	})
}

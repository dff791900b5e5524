package codec

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

var atByte = regexp.MustCompile(` at byte \d+ of \d+`)

// readBatch decodes a batch of one check.
func readBatch(check string) string {
	var dec Decoder
	var q Request
	if _, e := dec.StartBatch([]byte(`{"checks":[` + check + `]}`)); e != nil {
		return "refused"
	}
	if !dec.MoreChecks(0) {
		return "no check"
	}
	if e := dec.NextCheck(&q, &rules.Set{}); e != nil {
		return atByte.ReplaceAllString(e.Detail, "")
	}
	return fmt.Sprint(q.Attributes, q.ByKey, q.given, dec.MoreChecks(1))
}

// A check with attributes only takes the fast path if it is written plainly,
// else the general one. Both give the same result.
func TestPlainChecks(t *testing.T) {
	long := strings.Repeat("x", MaxValue)
	many := make([]string, document.MaxAttributes+1)
	for i := range many {
		many[i] = fmt.Sprintf(`"a%d":"v"`, i)
	}
	for attributes, plain := range map[string]bool{
		`"user":"alice"`:                  true,
		`"user":"alice","path":"/","":""`: true,
		`"user":"é"`:                      true,
		`"` + long + `":"` + long + `"`:   true,
		strings.Join(many[1:], ","):       true,
		strings.Join(many, ","):           false,
		`"user":"x` + long + `"`:          false,
		`"x` + long + `":"v"`:             false,
		`"user":"\u0061"`:                 false,
		`"us\"er":"a"`:                    false,
		"\"user\":\"a\nb\"":               false,
		`"user":"a","user":"b"`:           false,
		`"user":7`:                        false,
		`"user": "a"`:                     false,
		`"user":"a", "path":"/"`:          false,
		`"user":"a",`:                     false,
		`"user"`:                          false,
		`"user":"a"},"cost":2,"attributes":{"path":"/"`: false,
		`"user":"a"},"cost":2,"costs":{"b":3`:           false,
		`"user":"a"}},{"attributes":{"user":"b"`:        true,
		`"user":"a"},"x":{`:                             false,
	} {
		one := `{"attributes":{` + attributes + `}}`
		expect.Equal(t, readBatch(one), readBatch("{ "+one[1:]), "%.80s", one)
		dec := Decoder{src: []byte(one + "]}")}
		q := Request{Query: limiter.Query{Attributes: []rules.Attribute{}}}
		if have := dec.readPlain(&q.Attributes); have != plain {
			t.Errorf("%.80s: plain is %v, want %v", one, have, plain)
		} else if !plain && (len(q.Attributes) > 0 || dec.pos > 0) {
			t.Errorf("%.80s: not plain, but read %v up to byte %d", one, q.Attributes, dec.pos)
		}
		if !plain {
			continue
		}
		for end := range min(len(one), 100) {
			if dec := (Decoder{src: []byte(one[:end])}); dec.readPlain(nil) && dec.pos > end {
				t.Errorf("%s: read up to byte %d", one[:end], dec.pos)
			}
		}
	}
}

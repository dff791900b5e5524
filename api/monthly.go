package api

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rlnode/rlnode/usage"
)

// Months tells what subjects were admitted by calendar month. *usage.Cluster is one.
type Months interface {
	// Open begins to read a month. What can't be asked is in Missing of what it returns.
	Open(ctx context.Context, q usage.Query) (*usage.Stream, error)
}

const (
	// maxExports bounds the exports at once; one more is turned away.
	maxExports = 2
	// exportRows is how many rows are written between two looks at the clock.
	exportRows = 1024
	// incompleteHeader names nodes whose counts are not in an export, if that is known when it begins.
	incompleteHeader = "Rlnode-Incomplete"
	typeCSV          = "text/csv; charset=utf-8"
)

// monthlyQuery is what is asked for.
type monthlyQuery struct {
	usage.Query
	csv     bool
	partial bool // also when a node can't be asked
}

func (s *adminServer) monthlyQuery(r *http.Request) (q monthlyQuery, err error) {
	values := r.URL.Query()
	q.Month = usage.MonthOf(time.Now().UnixNano())
	if text := values.Get("month"); text != "" {
		if q.Month, err = usage.ParseMonth(text); err != nil {
			return q, errorf(BadValue, "%v", err)
		}
	}
	if q.Rule = values.Get("rule"); len(q.Rule) > maxValue || !utf8.ValidString(q.Rule) {
		return q, errorf(BadValue, "rule must be UTF-8 of at most %d bytes", maxValue)
	}
	scope, err := choice(values, "scope", "cluster", "node")
	if err != nil {
		return q, err
	}
	incomplete, err := choice(values, "incomplete", "refuse", "allow")
	if err != nil {
		return q, err
	}
	format, err := choice(values, "format", "json", "csv")
	q.Here, q.csv = scope == "node", format == "csv"
	q.partial = incomplete == "allow" || !q.csv // JSON says so itself
	return q, err
}

// choice is the value of a parameter that has two; the first one if it is not given.
func choice(q url.Values, name, usual, other string) (string, error) {
	text := cmp.Or(q.Get(name), usual)
	if text != usual && text != other {
		return "", errorf(BadValue, "%s must be %s or %s", name, usual, other)
	}
	return text, nil
}

// getMonthly answers what subjects were admitted in a month.
func (s *adminServer) getMonthly(w http.ResponseWriter, r *http.Request) error {
	if s.api.config.Months == nil {
		return errorf(NotFound, "this node counts no usage by month")
	}
	q, err := s.monthlyQuery(r)
	if err != nil {
		return err
	}
	select {
	case s.exports <- struct{}{}:
		defer func() { <-s.exports }()
	default:
		return errorf(Overloaded, "%d exports are under way; try again when one is done", maxExports)
	}
	stream, err := s.api.config.Months.Open(r.Context(), q.Query)
	if err != nil {
		return errorf(Timeout, "reading took too long")
	}
	if missing := stream.Missing(); len(missing) > 0 {
		if !q.partial {
			return errorf(Incomplete, "not all was told by %s; incomplete=allow answers what there is", excerpt(strings.Join(missing, ", ")))
		}
		for i, name := range missing {
			missing[i] = strconv.QuoteToASCII(name)
		}
		w.Header().Set(incompleteHeader, strings.Join(missing, ", "))
	}
	w.Header().Set("Cache-Control", "no-store")
	if r.Method == http.MethodHead {
		return nil
	}
	e := export{w: w, stream: stream, query: q, control: http.NewResponseController(w)}
	if q.csv {
		err = e.csv()
	} else {
		err = e.json()
	}
	if err != nil {
		// The status has been sent. An answer that breaks off is all that is left to say.
		s.log.Warn("export of usage broke off", "error", err)
		panic(http.ErrAbortHandler)
	}
	return nil
}

// export writes a month's rows.
type export struct {
	w       http.ResponseWriter
	stream  *usage.Stream
	query   monthlyQuery
	control *http.ResponseController
	rows    int
}

// next reads a row; whoever takes the rows has time for each lot of them.
func (e *export) next() (usage.Row, bool) {
	if e.rows%exportRows == 0 {
		_ = e.control.SetWriteDeadline(time.Now().Add(adminWriteTimeout)) // else the server's holds
	}
	e.rows++
	return e.stream.Next()
}

func (e *export) json() error {
	e.w.Header().Set("Content-Type", typeJSON)
	b := appendString([]byte(`{"month":`), e.query.Month.String())
	if e.query.Here {
		b = append(b, `,"scope":"node","rows":[`...)
	} else {
		b = append(b, `,"scope":"cluster","rows":[`...)
	}
	for first := true; ; first = false {
		row, ok := e.next()
		if !ok {
			break
		}
		if !first {
			b = append(b, ',')
		}
		b = appendMonthlyRow(b, &row)
		if len(b) >= keptBuffer {
			if _, err := e.w.Write(b); err != nil {
				return fmt.Errorf("write rows: %w", err)
			}
			b = b[:0]
		}
	}
	missing := e.stream.Missing()
	if missing == nil {
		missing = []string{}
	}
	list, err := json.Marshal(missing)
	if err != nil {
		return fmt.Errorf("write rows: %w", err)
	}
	b = append(append(b, `],"incomplete":`...), list...)
	_, err = e.w.Write(append(b, '}', '\n'))
	return err
}

func appendMonthlyRow(b []byte, row *usage.Row) []byte {
	b = appendString(append(b, `{"rule":`...), row.Rule)
	if row.Other {
		b = append(b, `,"key":null,"other":true`...)
	} else {
		b = appendKey(append(b, `,"key":`...), row.Key)
	}
	b = appendString(append(b, `,"unit":`...), row.Unit)
	b = appendInt(b, `,"cost":`, row.Cost)
	b = appendInt(b, `,"checks":`, row.Checks)
	return append(b, '}')
}

// csv writes a line a row. A node that fails on the way breaks the answer off: a file that is too short without a word
// would be a bill that is too low.
func (e *export) csv() error {
	e.w.Header().Set("Content-Type", typeCSV)
	e.w.Header().Set("Content-Disposition", `attachment; filename="usage-`+e.query.Month.String()+`.csv"`)
	known := len(e.stream.Missing())
	out := csv.NewWriter(e.w)
	_ = out.Write([]string{"month", "rule", "key", "unit", "cost", "checks", "other"}) // out.Error tells
	month := e.query.Month.String()
	for {
		row, ok := e.next()
		if !ok {
			break
		}
		if missing := e.stream.Missing(); len(missing) > known {
			return fmt.Errorf("not all was told by %s", strings.Join(missing, ", "))
		}
		key, others := "", "0"
		switch {
		case row.Other:
			others = "1"
		case len(row.Key) == 1:
			key = row.Key[0]
		default:
			key = string(appendStrings(nil, row.Key))
		}
		_ = out.Write([]string{month, cell(row.Rule), cell(key), cell(row.Unit),
			strconv.FormatInt(row.Cost, 10), strconv.FormatInt(row.Checks, 10), others})
		if err := out.Error(); err != nil {
			return fmt.Errorf("write rows: %w", err)
		}
	}
	if missing := e.stream.Missing(); len(missing) > known {
		return fmt.Errorf("not all was told by %s", strings.Join(missing, ", "))
	}
	out.Flush()
	return out.Error()
}

// cell keeps a spreadsheet from taking a caller's text as a formula: such text gets a ' in front, and so does text that
// begins with one, so that taking the first ' away gives the text back.
func cell(text string) string {
	if text != "" && strings.ContainsRune("=+-@\t\r\n'＝＋－＠", []rune(text)[0]) {
		return "'" + text
	}
	return text
}

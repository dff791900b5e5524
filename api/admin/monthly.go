package admin

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/usage"
)

// Months reports what was admitted by subject and calendar month. *usage.Totals is one.
type Months interface {
	// Read starts to read a month. The stream's Missing lists the nodes that can't be reached.
	Read(ctx context.Context, q usage.Query) (*usage.Stream, error)
}

const (
	// maxExports bounds the exports in progress at once; any more are refused.
	maxExports = 2
	// exportRows is the number of rows after which the write deadline is extended.
	exportRows = 1024
	// exportBytes is the size at which buffered rows are written.
	exportBytes = 64 << 10
	// incompleteHeader lists the nodes whose counts are missing from an export, as
	// far as that is known when it begins.
	incompleteHeader = "Rlnode-Incomplete"
	// estimatedHeader lists the nodes whose counts come from a copy that may lack the last of them.
	estimatedHeader = "Rlnode-Estimated"
	typeCSV         = "text/csv; charset=utf-8"
)

// monthlyQuery is a parsed request for monthly usage.
type monthlyQuery struct {
	usage.Query
	csv     bool
	partial bool // answer even if a node can't be reached
}

func (s *Server) parseMonthlyQuery(r *http.Request) (q monthlyQuery, err error) {
	values := r.URL.Query()
	q.Month = usage.MonthOf(time.Now().UnixNano())
	if text := values.Get("month"); text != "" {
		q.Month, err = usage.ParseMonth(text)
		if err != nil {
			return q, api.Errorf(api.BadValue, "%v", err)
		}
	}

	q.Rule = values.Get("rule")
	if len(q.Rule) > codec.MaxValue || !utf8.ValidString(q.Rule) {
		return q, api.Errorf(api.BadValue, "rule must be UTF-8 of at most %d bytes", codec.MaxValue)
	}

	scope, err := choiceParam(values, "scope", "cluster", "node")
	if err != nil {
		return q, err
	}

	incomplete, err := choiceParam(values, "incomplete", "refuse", "allow")
	if err != nil {
		return q, err
	}

	format, err := choiceParam(values, "format", "json", "csv")
	q.Here, q.csv = scope == "node", format == "csv"
	q.partial = incomplete == "allow" || !q.csv // a JSON answer lists the missing nodes itself
	return q, err
}

// choiceParam returns the value of a parameter that is either usual, the default,
// or one of alternatives.
func choiceParam(q url.Values, name, usual string, alternatives ...string) (string, error) {
	text := cmp.Or(q.Get(name), usual)
	if text != usual && !slices.Contains(alternatives, text) {
		return "", api.Errorf(api.BadValue, "%s must be %s or %s", name, usual, strings.Join(alternatives, " or "))
	}
	return text, nil
}

// getMonthly answers with what was admitted in a month, by subject.
func (s *Server) getMonthly(w http.ResponseWriter, r *http.Request) error {
	if s.config.Months == nil {
		return api.Errorf(api.NotFound, "this node does not count usage by month")
	}

	q, err := s.parseMonthlyQuery(r)
	if err != nil {
		return err
	}

	select {
	case s.exports <- struct{}{}:
		defer func() { <-s.exports }()
	default:
		return api.Errorf(api.Overloaded, "%d exports are in progress; try again when one is done", maxExports)
	}

	stream, err := s.config.Months.Read(r.Context(), q.Query)
	if err != nil {
		return api.Errorf(api.Timeout, "reading took too long")
	}

	missing := stream.Missing()
	if len(missing) > 0 {
		if !q.partial {
			return api.Errorf(api.Incomplete,
				"usage is missing from %s; incomplete=allow returns the rest",
				api.Excerpt(strings.Join(missing, ", ")))
		}
		setNames(w.Header(), incompleteHeader, missing)
	}

	estimated := stream.Estimated()
	if len(estimated) > 0 {
		names := make([]string, len(estimated))
		for i, estimate := range estimated {
			names[i] = estimate.Node
		}
		setNames(w.Header(), estimatedHeader, names)
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
		// The status has already been sent, so breaking off the answer is the only way
		// left to report the error.
		s.doors.Logger.Warn("export of usage broke off", "error", err)
		panic(http.ErrAbortHandler)
	}

	return nil
}

// setNames sets a header to a list of quoted names.
func setNames(h http.Header, header string, names []string) {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = strconv.QuoteToASCII(name)
	}
	h.Set(header, strings.Join(quoted, ", "))
}

// export writes the rows of a month.
type export struct {
	w       http.ResponseWriter
	stream  *usage.Stream
	query   monthlyQuery
	control *http.ResponseController
	rows    int
}

// next reads a row. It extends the write deadline every exportRows rows.
func (e *export) next() (usage.Row, bool) {
	if e.rows%exportRows == 0 {
		_ = e.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // if this fails, the old deadline stays
	}
	e.rows++
	return e.stream.Next()
}

func (e *export) json() error {
	e.w.Header().Set("Content-Type", codec.TypeJSON)
	b := codec.AppendString([]byte(`{"month":`), e.query.Month.String())
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
		if len(b) >= exportBytes {
			if _, err := e.w.Write(b); err != nil {
				return fmt.Errorf("write rows: %w", err)
			}
			b = b[:0]
		}
	}

	_, err := e.w.Write(e.appendQuality(b))
	return err
}

// estimate is an element of `estimated`.
type estimate struct {
	Node       string `json:"node"`
	AtMostLost int64  `json:"at_most_lost_ms"`
}

// appendQuality appends the end of the answer: how exact it is, and whether it
// has changed since the month was exported.
func (e *export) appendQuality(b []byte) []byte {
	estimated := []estimate{}
	for _, est := range e.stream.Estimated() {
		estimated = append(estimated, estimate{est.Node, est.AtMostLost.Milliseconds()})
	}
	missing, _ := json.Marshal(append([]string{}, e.stream.Missing()...)) // strings and numbers can't fail
	copies, _ := json.Marshal(estimated)
	b = append(append(b, `],"incomplete":`...), missing...)
	b = append(append(b, `,"estimated":`...), copies...)
	at := e.stream.Revised()
	if !at.IsZero() {
		b = codec.AppendString(append(b, `,"revised_at":`...), at.Format(time.RFC3339))
	}
	return append(b, '}', '\n')
}

func appendMonthlyRow(b []byte, row *usage.Row) []byte {
	b = codec.AppendString(append(b, `{"rule":`...), row.Rule)
	if row.Other {
		b = append(b, `,"key":null,"other":true`...)
	} else {
		b = codec.AppendKey(append(b, `,"key":`...), row.Key)
	}
	b = codec.AppendString(append(b, `,"unit":`...), row.Unit)
	b = codec.AppendInt(b, `,"cost":`, row.Cost)
	b = codec.AppendInt(b, `,"checks":`, row.Checks)
	return append(b, '}')
}

// csv writes one line per row. If a node fails midway, it returns an error and
// the answer breaks off: a file that is silently too short would make a bill
// that is too low.
func (e *export) csv() error {
	e.w.Header().Set("Content-Type", typeCSV)
	e.w.Header().Set("Content-Disposition", `attachment; filename="usage-`+e.query.Month.String()+`.csv"`)
	known := len(e.stream.Missing())
	out := csv.NewWriter(e.w)
	_ = out.Write([]string{"month", "rule", "key", "unit", "cost", "checks", "other"}) // out.Error reports failures

	month := e.query.Month.String()
	for {
		row, ok := e.next()
		if !ok {
			break
		}

		missing := e.stream.Missing()
		if len(missing) > known {
			return fmt.Errorf("usage is missing from %s", strings.Join(missing, ", "))
		}

		key := ""
		isOther := "0"
		switch {
		case row.Other:
			isOther = "1"
		case len(row.Key) == 1:
			key = row.Key[0]
		default:
			key = string(codec.AppendStrings(nil, row.Key))
		}

		_ = out.Write([]string{month, escapeCell(row.Rule), escapeCell(key), escapeCell(row.Unit),
			strconv.FormatInt(row.Cost, 10), strconv.FormatInt(row.Checks, 10), isOther})
		if err := out.Error(); err != nil {
			return fmt.Errorf("write rows: %w", err)
		}
	}

	missing := e.stream.Missing()
	if len(missing) > known {
		return fmt.Errorf("usage is missing from %s", strings.Join(missing, ", "))
	}

	out.Flush()
	err := out.Error()
	if err == nil {
		e.stream.Exported()
	}

	return err
}

// escapeCell keeps spreadsheets from reading a caller's text as a formula. It
// prefixes such text with ', and also text that begins with ', so that removing
// the first ' restores the original.
func escapeCell(text string) string {
	if text != "" && strings.ContainsRune("=+-@\t\r\n'＝＋－＠", []rune(text)[0]) {
		return "'" + text
	}
	return text
}

package codec

import "github.com/rlnode/rlnode/api"

// Reply is an HTTP answer. It is reused; its slices are valid until Reset.
type Reply struct {
	Status      int
	ContentType string
	Headers     []Header
	Body        []byte

	// values holds the header values. It only grows by append, so values already in
	// Headers stay unchanged.
	values  []byte
	order   []int32 // indices into the answer's Limits, tightest first
	scratch []byte  // scratch space for text that is then quoted

	inBatch      bool             // decisions refer to the table of refusals
	refusals     map[string]int64 // places in refusalTable, by the refusals as JSON; nil if there are none
	refusalTable []byte           // the refusals of a batch as JSON, separated by commas

	lastLimit     limitFieldsCache // of the last decision
	originVersion int64            // the version of the rules in origin
	origin        []byte           // the encoded fields node and rules_version of the last decision
}

// Header is a header of a Reply.
type Header struct {
	Name  string // in canonical form
	Value []byte
}

// The content types of answers.
const (
	TypeJSON    = "application/json"
	TypeProblem = "application/problem+json"
)

// Reset prepares r for the next request.
func (r *Reply) Reset() {
	// A composite literal would copy what stays, such as lastLimit, twice.
	r.Status = 0
	r.ContentType = ""
	r.Headers = r.Headers[:0]
	r.Body = api.Reuse(r.Body)
	r.values = api.Reuse(r.values)
	r.order = r.order[:0]
	r.scratch = api.Reuse(r.scratch)
	r.lastLimit.endAnswer()
	r.inBatch = false
	r.refusals = nil
	r.refusalTable = nil
}

// Size returns roughly how many bytes r holds.
func (r *Reply) Size() int { return cap(r.Body) + cap(r.values) + cap(r.scratch) + cap(r.refusalTable) }

// StartJSON starts a JSON answer with the given status.
func (r *Reply) StartJSON(status int) {
	r.Status, r.ContentType = status, TypeJSON
}

// SetError turns r into the answer that reports e.
func (r *Reply) SetError(e *api.Error) {
	r.Status, r.ContentType = e.Status(), TypeProblem
	r.Body = AppendProblem(r.Body[:0], e)
	// Headers that a decision has added do not belong to an error.
	r.Headers = r.Headers[:0]
	switch e.Code {
	case api.Unauthorized:
		r.addHeader("WWW-Authenticate", []byte(`Bearer realm="rlnode"`))
	case api.MethodNotAllowed:
		r.addHeader("Allow", []byte(e.Allow))
	}
}

func (r *Reply) addHeader(name string, value []byte) {
	r.Headers = append(r.Headers, Header{name, value})
}

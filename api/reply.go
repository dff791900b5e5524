package api

// Reply is an answer over HTTP. It is reused; its slices are valid until Reset.
type Reply struct {
	Status      int
	ContentType string
	Headers     []Header
	Body        []byte

	// values holds the values of headers. It grows only by append: values already handed out stay unchanged.
	values []byte
	order  []int32 // indices into the answer's Limits, tightest first
	spare  []byte  // scratch space for a sentence before it is quoted
}

// Header is a header of a Reply.
type Header struct {
	Name  string // in canonical form
	Value []byte
}

const (
	typeJSON    = "application/json"
	typeProblem = "application/problem+json"
)

// Reset prepares r for the next request.
func (r *Reply) Reset() {
	*r = Reply{Headers: r.Headers[:0], Body: kept(r.Body), values: kept(r.values), order: r.order[:0], spare: kept(r.spare)}
}

// Size returns roughly how many bytes r holds.
func (r *Reply) Size() int { return cap(r.Body) + cap(r.values) + cap(r.spare) }

// JSON starts a JSON answer.
func (r *Reply) JSON(status int) {
	r.Status, r.ContentType = status, typeJSON
}

// Refuse answers with an error.
func (r *Reply) Refuse(e *Error) {
	r.Status, r.ContentType = e.Status(), typeProblem
	r.Body = appendProblem(r.Body[:0], e)
	r.Headers = r.Headers[:0]
	switch e.Code {
	case Unauthorized:
		r.set("WWW-Authenticate", []byte(`Bearer realm="rlnode"`))
	case MethodNotAllowed:
		r.set("Allow", []byte(e.allow))
	}
}

func (r *Reply) set(name string, value []byte) {
	r.Headers = append(r.Headers, Header{name, value})
}

package api

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/limiter/loads"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/rules/entries"
)

// Code names an error in a problem+json answer.
type Code string

// The codes of all doors.
const (
	BadJSON             Code = "bad-json"
	UnknownField        Code = "unknown-field"
	BadValue            Code = "bad-value"
	MissingKey          Code = "missing-key"
	BadRequest          Code = "bad-request" // not valid HTTP
	Unauthorized        Code = "unauthorized"
	Forbidden           Code = "forbidden"    // the token lacks the scope, or the rules do not allow it
	Denied              Code = "denied"       // a decision: the deny list or the default refused the check
	RateLimited         Code = "rate-limited" // a decision, as are those below: a limit refused the check
	CostAboveLimit      Code = "cost-above-limit"
	Reduced             Code = "reduced"
	Blocked             Code = "blocked"
	CrossOrigin         Code = "cross-origin" // the request comes from a page in a browser
	WrongHost           Code = "wrong-host"   // admin plane: Host names no known host name of this node
	UnknownRule         Code = "unknown-rule"
	UnknownLimit        Code = "unknown-limit"
	UnknownReservation  Code = "unknown-reservation"
	NotFound            Code = "not-found"
	MethodNotAllowed    Code = "method-not-allowed"
	Timeout             Code = "timeout" // the request did not arrive in time
	Conflict            Code = "conflict"
	TooLarge            Code = "too-large"
	TooMuchWork         Code = "too-much-work" // a batch's checks match too many limits
	InvalidRules        Code = "invalid-rules"
	HeadersTooLarge     Code = "headers-too-large"
	Internal            Code = "internal"
	NotReady            Code = "not-ready"
	Draining            Code = "draining"
	NoLeader            Code = "no-leader" // writes: there is no leader to agree on the change
	NoOwner             Code = "no-owner"  // reads of counters: no node that may answer can be reached
	Refused             Code = "member-there"
	OnlyMember          Code = "only-member"
	LevelRefused        Code = "level-refused"
	NoPrimary           Code = "no-primary" // writes: the region where rules are written can't be reached
	WriteFailed         Code = "write-failed"
	Overloaded          Code = "overloaded"
	TooManyReservations Code = "too-many-reservations"
	TooManySlots        Code = "too-many-slots"
	UnknownSlot         Code = "unknown-slot"
	TryAgain            Code = "try-again" // no node may decide about slots for the moment
	RequestIDReused     Code = "request-id-reused"
	InDocument          Code = "in-document"      // the document has it, and no entry beside it
	TooManyEntries      Code = "too-many-entries" // no place is left for an entry beside the document
	Incomplete          Code = "incomplete"       // exports: a node that holds part of the data can't be reached
)

// QuotaExceeded is the title of a refusal by a limit.
const QuotaExceeded = "Request cannot be satisfied as assigned quota has been exceeded"

// kinds maps each code to its HTTP status and title.
var kinds = map[Code]struct {
	status int
	title  string
}{
	BadJSON:             {http.StatusBadRequest, "The body is not one strict JSON object"},
	UnknownField:        {http.StatusBadRequest, "Unknown field"},
	BadValue:            {http.StatusBadRequest, "Value out of bounds"},
	MissingKey:          {http.StatusBadRequest, "A required field is missing"},
	BadRequest:          {http.StatusBadRequest, "The request is not valid HTTP"},
	Unauthorized:        {http.StatusUnauthorized, "A valid token is needed"},
	Forbidden:           {http.StatusForbidden, "This is not allowed"},
	Denied:              {http.StatusForbidden, "The rules deny this"},
	RateLimited:         {http.StatusTooManyRequests, QuotaExceeded},
	CostAboveLimit:      {http.StatusTooManyRequests, QuotaExceeded},
	Reduced:             {http.StatusTooManyRequests, QuotaExceeded},
	Blocked:             {http.StatusTooManyRequests, QuotaExceeded},
	CrossOrigin:         {http.StatusForbidden, "Refused to a page in a browser"},
	WrongHost:           {http.StatusMisdirectedRequest, "Not a name of this node's admin plane"},
	UnknownRule:         {http.StatusNotFound, "Unknown rule"},
	UnknownLimit:        {http.StatusNotFound, "Unknown limit"},
	UnknownReservation:  {http.StatusNotFound, "Unknown reservation"},
	NotFound:            {http.StatusNotFound, "Not found"},
	MethodNotAllowed:    {http.StatusMethodNotAllowed, "Method not allowed"},
	Timeout:             {http.StatusRequestTimeout, "The request did not arrive in time"},
	Conflict:            {http.StatusPreconditionFailed, "The rules have changed"},
	TooLarge:            {http.StatusRequestEntityTooLarge, "The body is too large"},
	TooMuchWork:         {http.StatusRequestEntityTooLarge, "The request takes too much work"},
	InvalidRules:        {http.StatusUnprocessableEntity, "The rules are not valid"},
	HeadersTooLarge:     {http.StatusRequestHeaderFieldsTooLarge, "The headers are too large"},
	Internal:            {http.StatusInternalServerError, "Internal error"},
	NotReady:            {http.StatusServiceUnavailable, "Not ready"},
	Draining:            {http.StatusServiceUnavailable, "Draining"},
	NoLeader:            {http.StatusServiceUnavailable, "No leader"},
	NoOwner:             {http.StatusServiceUnavailable, "The owner of the subject can't be reached"},
	Refused:             {http.StatusConflict, "The cluster refuses this"},
	OnlyMember:          {http.StatusConflict, "There is no other member"},
	RequestIDReused:     {http.StatusConflict, "Another request had this id"},
	LevelRefused:        {http.StatusConflict, "The feature level can't be raised to that"},
	NoPrimary:           {http.StatusServiceUnavailable, "The primary region can't be reached"},
	WriteFailed:         {http.StatusServiceUnavailable, "The rules could not be stored"},
	Overloaded:          {http.StatusServiceUnavailable, "The node is overloaded"},
	TooManyReservations: {http.StatusServiceUnavailable, "Too many reservations are open"},
	TooManySlots:        {http.StatusServiceUnavailable, "Too many slots are held"},
	UnknownSlot:         {http.StatusNotFound, "Unknown slot"},
	TryAgain:            {http.StatusServiceUnavailable, "Try again"},
	InDocument:          {http.StatusConflict, "Only the rules document has this"},
	TooManyEntries:      {http.StatusConflict, "There are too many entries"},
	Incomplete:          {http.StatusServiceUnavailable, "Not all nodes could be asked"},
}

// Error is an error that is reported to the caller.
type Error struct {
	Code     Code
	Detail   string          // names the field and its bound
	Err      error           // the cause, if any
	Mistakes document.Errors // for InvalidRules: the mistakes in the document
	Allow    string          // for MethodNotAllowed: the allowed methods
	Line     int             // for InDocument: the line of the document; 0: not known
}

// Error returns code and detail.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Detail }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Status returns the HTTP status of e.
func (e *Error) Status() int { return kinds[e.Code].status }

// Errorf returns an error with a formatted detail.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// InternalError returns the error for a bug. It reveals no details to the caller.
func InternalError() *Error {
	return Errorf(Internal, "something went wrong; the node's log says what")
}

// TooLargeError returns the error for a body of more than bound bytes.
func TooLargeError(bound int) *Error {
	return Errorf(TooLarge, "the body must not have more than %d bytes", bound)
}

// ReceiveError explains why a request could not be read.
func ReceiveError(err error) *Error {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return Errorf(Timeout, "the request did not arrive in time")
	}
	return Errorf(BadRequest, "the request cannot be read as HTTP/1.1")
}

// HeadTooLargeError returns the error for a request's first line and headers of
// more than bound bytes.
func HeadTooLargeError(bound int) *Error {
	return Errorf(HeadersTooLarge, "the request's first line and headers must not have more than %d bytes", bound)
}

// FramingError returns the error for a request that can be read in two ways.
func FramingError(why error) *Error {
	return Errorf(BadRequest, "the request cannot be read as HTTP/1.1: %v", why)
}

// Title returns the title of e's code.
func (e *Error) Title() string { return kinds[e.Code].title }

// causes maps the errors of other packages to codes.
var causes = []struct {
	err    error
	code   Code
	prefix string // prepended to the error's text to make the detail
}{
	{document.ErrNotFound, NotFound, ""},
	{rules.ErrConflict, Conflict, ""},
	{entries.ErrNotFound, NotFound, ""},
	{entries.ErrFull, TooManyEntries, ""},
	{entries.ErrScope, Forbidden, ""},
	{entries.ErrInvalid, BadValue, ""},
	{limiter.ErrNoOwner, NoOwner, ""},
	{limiter.ErrUnknownRule, UnknownRule, ""},
	{limiter.ErrUnknownLimit, UnknownLimit, ""},
	{limiter.ErrNotBilled, BadValue, ""},
	{limiter.ErrUnknownReservation, UnknownReservation, "reservation: "},
	{limiter.ErrTooManyLimits, BadValue, ""},
	{limiter.ErrOnExpiry, BadValue, ""},
	{limiter.ErrAtMost, BadValue, ""},
	{limiter.ErrKey, BadValue, "key: "},
	{limiter.ErrMissing, MissingKey, "key: "},
	{limiter.ErrInline, BadValue, ""},
	{limiter.ErrNamespace, Forbidden, ""},
	{limiter.ErrLevelTooLow, NotReady, ""},
	{limiter.ErrNoLimitInUnit, BadValue, "costs: "},
	{limiter.ErrRequestIDReused, RequestIDReused, ""},
	{limiter.ErrTooManyRequestIDs, Overloaded, ""},
	{limiter.ErrTooManyReservations, TooManyReservations, ""},
	{limiter.ErrAcquire, BadValue, ""},
	{limiter.ErrNoSlots, BadValue, ""},
	{limiter.ErrSlotTTL, BadValue, ""},
	{limiter.ErrUnknownSlot, UnknownSlot, "slot: "},
	{limiter.ErrTryAgain, TryAgain, ""},
	{limiter.ErrTooManySlots, TooManySlots, ""},
	{limiter.ErrNoRoom, Overloaded, ""},
	{loads.ErrFull, Overloaded, ""},
}

// AsError returns err as an Error with a code. An unknown error becomes
// Internal, and callers do not see its text.
func AsError(err error) *Error {
	if known, ok := errors.AsType[*Error](err); ok {
		return known
	}
	if invalid, ok := errors.AsType[document.Errors](err); ok {
		return invalidRules(invalid)
	}
	if report, ok := errors.AsType[loads.ReportError](err); ok {
		return &Error{Code: BadValue, Detail: report.Error(), Err: err}
	}

	for _, cause := range causes {
		if errors.Is(err, cause.err) {
			return &Error{Code: cause.code, Detail: cause.prefix + err.Error(), Err: err}
		}
	}

	return &Error{Code: Internal, Detail: InternalError().Detail, Err: err}
}

// invalidRules returns the error that lists all mistakes in a rules document.
func invalidRules(list document.Errors) *Error {
	e := &Error{Code: InvalidRules, Detail: "the rules are not valid", Err: list,
		Mistakes: append(document.Errors{}, list...)}
	if len(list) > 0 {
		first := list[0].Error()
		if list[0].Line > 0 {
			first = fmt.Sprintf("line %d, column %d: %s", list[0].Line, list[0].Column, list[0].Message)
		}
		e.Detail = fmt.Sprintf("%d mistake(s); the first: %s", len(list), first)
	}
	return e
}

// Excerpt returns a copy of a caller's text, shortened to at most 64 bytes and an ellipsis.
func Excerpt(v string) string {
	const bound = 64
	if len(v) <= bound {
		return strings.Clone(v)
	}
	cut := bound
	for cut > 0 && !utf8.RuneStart(v[cut]) {
		cut--
	}
	return v[:cut] + "…"
}

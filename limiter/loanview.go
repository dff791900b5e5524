package limiter

// LoanRequest is what a body of MethodLend and MethodLendHere says, for those who only look on: tests and simulations.
type LoanRequest struct {
	Rule   string
	Key    []string
	Window int64 // its number; 0 of a bucket
	Want   int64 // units
}

// ReadLoanRequest reads the body of a request for a loan.
func ReadLoanRequest(body []byte) (LoanRequest, error) {
	r, err := readLoanRequest(body)
	return LoanRequest{Rule: r.rule, Key: r.key, Window: r.window, Want: r.want}, err
}

// ReadLoanReply reads how much the reply to it says was lent, 0 for nothing.
func ReadLoanReply(body []byte) (amount int64, err error) {
	r, err := readLoanReply(body)
	return r.amount, err
}

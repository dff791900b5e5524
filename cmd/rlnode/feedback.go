package main

import (
	"fmt"
	"io"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/replay"
)

// feedbackCmd reports that a refusal was wrong.
type feedbackCmd struct {
	Rule    string   `required:"" placeholder:"RULE" help:"The rule that refused."`
	Key     []string `sep:"none" placeholder:"VALUE" help:"The subject; once for each key attribute of the rule, in its order."`
	Verdict string   `default:"false-positive" enum:"false-positive" placeholder:"VERDICT" help:"What was wrong (only ${default}, the default)."`
	answerFlags
}

// feedbackAnswer is a node's answer to feedback.
type feedbackAnswer struct {
	Rule           string           `json:"rule"`
	Key            admin.SubjectKey `json:"key"`
	FalsePositives int64            `json:"false_positives"`
}

// Run reports it, and prints how many there are of the rule.
func (c *feedbackCmd) Run(env *environment) error {
	fields, err := (&subjectFlags{Rule: c.Rule, Key: c.Key}).fields()
	if err != nil {
		return err
	}
	fields["verdict"] = c.Verdict

	return sendAndPrint(env, c.client, c.JSON, postFields("/v1/feedback", fields),
		func(w io.Writer, a *feedbackAnswer) error {
			_, err := fmt.Fprintf(w,
				"counted: %s should not have refused %s; %d since this node's process began\n",
				printable(a.Rule), replay.Key(a.Key), a.FalsePositives)
			return err
		})
}

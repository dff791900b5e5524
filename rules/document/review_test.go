package document

import (
	"strings"
	"testing"
)

// A field of an entry is no attribute in a list that is written alone, unless
// the document declares one of its name. GET shows an origin in any case.
func TestReviewPiece(t *testing.T) {
	const declares = "attributes: [ip, note, origin]\n"
	for _, tt := range []struct{ head, body, want string }{
		{"", "[{ip: 192.0.2.7}, {user: eve}]", ""},
		{"", "[{ip: 192.0.2.7, origin: document}]", "lists.deny[0].origin"},
		{"", "- {ip: 192.0.2.7}\n- {ip: 192.0.2.8, for: 1h}", "2:19: lists.deny[1].for"},
		{"", "[{note: x}]", "lists.deny[0].note"},
		{declares, "[{note: x}]", ""},
		{declares, "[{note: x, origin: document}]", "lists.deny[0].origin"},
		{"", "{ip: 192.0.2.7}", ""}, // Apply refuses it
		{"", "[ip]", ""},
		{"", "[", "1:2"},
	} {
		doc := mustParse(t, "version: 1\n"+tt.head)
		err := doc.ReviewPiece(Change{Part: ListPart, Name: "deny", Body: []byte(tt.body)})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s%s: have %v, want %q", tt.head, tt.body, err, tt.want)
		}
	}
	for _, c := range []Change{
		{Part: ListPart, Name: "deny", Delete: true},
		{Part: RulePart, Name: "r", Body: []byte("[{origin: x}]")},
	} {
		if err := (*Document)(nil).ReviewPiece(c); err != nil {
			t.Errorf("%v: have %v", c, err)
		}
	}
}

func TestReview_costTables(t *testing.T) {
	const head = "tiers: {free: {limits: [{limit: 1, per: 1m, unit: credits}]}}\nrules:\n  - name: a\n    key: [user]\n    "
	for _, tt := range []struct{ rule, want string }{
		{"cost: {by: model}\n    limits: [{limit: 1, per: 1m}]", ""},
		{"cost: {by: model, unit: requests}\n    limits: [{limit: 1, per: 1m, unit: tokens}, {limit: 1, per: 1m}]", ""},
		{"cost: {by: model, unit: tokens}\n    limits: [{limit: 1, per: 1m, unit: tokens}]", ""},
		{"cost: {by: model, unit: credits}\n    tiered: true", ""},
		{"cost: {by: model}\n    tiered: true", "did you mean unit: credits?"},
		{"cost: {by: model, unit: token}\n    limits: [{limit: 1, per: 1m, unit: tokens}]",
			"its unit is token, but no limit of the rule has that unit"},
		{"cost: {by: model}\n    limits: [{limit: 1, per: 1m}]\nsubjects: {user: {x: {limits: {a: [{limit: 1, per: 1m, unit: credits}]}}}}", ""},
		{"cost: {by: model, unit: credits}\n    limits: [{limit: 1, per: 1m}]\nsubjects: {user: {x: {limits: {a: [{limit: 1, per: 1m, unit: credits}]}}}}", ""},
	} {
		_, err := Review([]byte(head + tt.rule + "\n"))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s:\ngot %v, want %q", tt.rule, err, tt.want)
		}
	}
}

func TestReview_namesOfLimits(t *testing.T) {
	const head = "rules:\n  - name: a\n    key: [user]\n    "
	const window, bucket = "{limit: 10, per: 1m}", "{limit: 5, per: 1m, algorithm: token-bucket}"
	for _, tt := range []struct{ doc, want string }{
		{head + "limits: [" + window + ", " + bucket + "]",
			"4:36: rules[0].limits[1]: rules[0].limits[0] has the same unit and window, which tell limits without a name apart; give one of them a name"},
		{head + "limits: [{limit: 9, per: day, tz: UTC}, {limit: 9, per: day, tz: Europe/Paris}]",
			"rules[0].limits[1]: rules[0].limits[0] has the same unit and window"},
		{head + "limits: [" + window +
			", {limit: 5, per: 1m, unit: requests, algorithm: token-bucket}]",
			"rules[0].limits[1]: rules[0].limits[0] has the same unit and window"},
		{"tiers: {free: {limits: [" + window + ", " + bucket + "]}}\n" + head + "tiered: true",
			"tiers.free.limits[1]: tiers.free.limits[0] has the same"},
		{head + "limits: [" + window + "]\nsubjects: {user: {x: {limits: {a: [" + window + ", " +
			bucket + "]}}}}", "subjects.user.x.limits.a[1]: subjects.user.x.limits.a[0] has the same"},
		{head + "limits: [" + window + ", {limit: 5, per: 1m, algorithm: token-bucket, name: burst}]", ""},
		{head + "limits: [" + window + ", {limit: 5, per: 1h, algorithm: token-bucket}]", ""},
		{head + "limits: [" + window + ", {limit: 5, per: 1m, unit: tokens}]", ""},
		{head + "limits: [" + window + ", {unlimited: true, unit: tokens}, {unlimited: true, unit: chars}]", ""},
	} {
		_, err := Review([]byte(tt.doc + "\n"))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s:\ngot %v, want %q", tt.doc, err, tt.want)
		}
		if doc, err := Parse([]byte(tt.doc + "\n")); err != nil || len(doc.Warnings()) < min(len(tt.want), 1) {
			t.Errorf("%s: Parse: %v, and it must warn", tt.doc, err)
		}
	}
}

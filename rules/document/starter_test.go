package document

import "testing"

func TestStarter(t *testing.T) {
	doc := Starter()
	if len(doc.Deny)+len(doc.Allow) > 0 {
		t.Error("the starter rules have lists")
	}
	if w := doc.Warnings(); len(w) > 0 {
		t.Errorf("warnings: %v", w)
	}
	for _, r := range doc.Rules {
		if len(r.Key) == 1 && r.Key[0][0] == "ip" {
			return
		}
	}
	t.Error("no starter rule is keyed by ip")
}

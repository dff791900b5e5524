package main

import (
	"fmt"
	"io"

	"github.com/rlnode/rlnode/replay"
)

// slotsCmd lists who holds the slots of a subject, or frees one.
type slotsCmd struct {
	List slotsListCmd `cmd:"" default:"withargs" help:"List who holds the slots of a subject (default)."`
	Free slotsFreeCmd `cmd:"" help:"Release a slot, whoever holds it."`
}

// slotsListCmd lists who holds the slots of a subject.
type slotsListCmd struct {
	subjectFlags
	usageFlags
}

func (c *slotsListCmd) Run(env *environment) error { return c.show(env, &c.subjectFlags, printSlots) }

// slotsFreeCmd releases a slot.
type slotsFreeCmd struct {
	Slot string `arg:"" help:"The slot, as rlnode slots lists it."`
	subjectFlags
	usageFlags
}

func (c *slotsFreeCmd) Run(env *environment) error {
	fields, err := c.fields()
	if err != nil {
		return err
	}
	fields["slot"] = c.Slot
	return sendAndPrint(env, c.data, c.JSON, postFields("/v1/reset", fields), printSlots)
}

func printSlots(w io.Writer, s *subjectAnswer) error {
	found := false
	for _, l := range s.Limits {
		if l.Algorithm != slotAlgorithm {
			continue
		}

		found = true
		fmt.Fprintf(w, "%s: %s  %d of %d held\n", printable(l.Name), replay.Key(s.Key), l.Used, l.Limit)

		if len(l.Slots) == 0 {
			continue
		}

		err := printTable(w, "SLOT\tN\tAGE\tENDS IN\tWHO", l.Slots, func(h heldSlot) string {
			return fmt.Sprintf("%s\t%d\t%s\t%s\t%s", printable(h.Slot), h.N,
				durationText(millis(h.AgeMS)), durationText(millis(h.ExpiresMS)), printable(h.Who))
		})
		if err != nil {
			return err
		}

		if rest := l.Holders - len(l.Slots); rest > 0 {
			fmt.Fprintf(w, "and %d more\n", rest)
		}
	}

	if !found {
		fmt.Fprintln(w, "it has no limit of slots (algorithm: concurrency)")
	}

	return nil
}

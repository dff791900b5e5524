package replay

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// Config configures a replay.
type Config struct {
	Rules       *rules.Set // required
	Against     *rules.Set // other rules, to compare with; nil for none
	MaxCounters int64      // at least 1: bounds the counters, and the subjects that the report tells apart
	Memory      int64      // bytes for records in memory; at least 4 MiB
	TempDir     string     // where to put records beyond Memory; empty for the system's temporary directory
	Top         int        // number of most refused subjects to report; 0 for none

	// Decisions receives one JSON line for each record, in order of time. It may be nil.
	Decisions io.Writer
	// Progress, if not nil, is called every few thousand lines with the lines read
	// and the records decided so far.
	Progress func(read, decided int64)
}

const minMemory = 4 << 20

// DefaultConfig returns a Config for set with ten million counters, 256 MiB for
// records and the top 20 subjects.
func DefaultConfig(set *rules.Set) Config {
	return Config{Rules: set, MaxCounters: 10_000_000, Memory: 256 << 20, Top: 20}
}

// Validate returns an error that names each field out of range.
func (c *Config) Validate() error {
	var errs []error
	if c.Rules == nil {
		errs = append(errs, errors.New("replay: Rules is nil"))
	} else {
		errs = append(errs, refuseSlots(c.Rules))
	}

	if c.Against != nil {
		errs = append(errs, refuseSlots(c.Against))
	}
	if c.MaxCounters < 1 {
		errs = append(errs, fmt.Errorf("replay: MaxCounters is %d; it must be at least 1", c.MaxCounters))
	}
	if c.Memory < minMemory {
		errs = append(errs, fmt.Errorf("replay: Memory is %d bytes; it must be at least %d", c.Memory, minMemory))
	}
	if c.Top < 0 {
		errs = append(errs, fmt.Errorf("replay: Top is %d; it must not be negative", c.Top))
	}

	return errors.Join(errs...)
}

// progressEvery is the number of lines or records between two calls of Progress
// and checks of the context.
const progressEvery = 4096

// refuseSlots returns an error if set has limits of slots.
func refuseSlots(set *rules.Set) error {
	names := slices.Sorted(maps.Keys(set.SlotTTLs()))
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("replay: limits of algorithm: concurrency can't be replayed, because a log does not say when requests ended: leave out the rules %q", names)
}

// Run replays inputs. It returns an error if it can't read an input to its end,
// sort the records or write the decisions, or if ctx is done. An unreadable
// line is not an error: Run skips and reports it.
func Run(ctx context.Context, c Config, inputs ...Input) (report *Report, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}

	p := &replayer{Config: c, ctx: ctx, inputs: inputs, records: newSpool(int(c.Memory), c.TempDir),
		tally: newTally(&c)}
	defer func() { err = errors.Join(err, p.records.close()) }()

	for i, in := range inputs {
		if err := p.read(i, in); err != nil {
			return nil, fmt.Errorf("read %s: %w", in.Name, err)
		}
	}

	if err := p.decideAll(); err != nil {
		return nil, err
	}

	report = p.tally.report(c.Top)
	if p.rival != nil {
		report.Against = p.rival.comparison(c.Top)
	}

	return report, nil
}

// replayer is one Run in progress.
type replayer struct {
	Config
	ctx       context.Context
	inputs    []Input
	records   *spool
	tally     *tally
	rival     *rival // nil without Against
	record    record
	scratch   []byte
	linesRead int64
	decided   int64
}

// read adds the records of one input.
func (p *replayer) read(i int, in Input) error {
	lines, err := newLineReader(in)
	if err != nil {
		return err
	}

	for n := int64(1); ; n++ {
		if err := lines.readLine(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}

		if err := p.countProgress(&p.linesRead); err != nil {
			return err
		}

		line := string(lines.line)
		if err := p.record.parse(line); err != nil {
			if lines.truncated {
				err = fmt.Errorf("%w (the line is longer than %d bytes)", err, maxLine)
			}
			p.tally.addSkipped(SkippedLine{Input: in.Name, Line: n, Reason: err.Error(), Text: excerpt(line)})
			continue
		}

		p.record.input, p.record.line = i, n
		p.scratch, err = p.records.add(&p.record, p.scratch)
		if err != nil {
			return err
		}
	}
}

// countProgress counts a line or a record. After every progressEvery of them,
// it reports the progress and checks the context.
func (p *replayer) countProgress(counted *int64) error {
	*counted++
	if *counted%progressEvery != 0 {
		return nil
	}
	if p.Progress != nil {
		p.Progress(p.linesRead, p.decided)
	}
	return p.ctx.Err()
}

// sweepEvery is the number of records after which a tenth of the table is swept
// for expired counters.
const sweepEvery = 100_000

// decideAll decides the records in order of time.
func (p *replayer) decideAll() error {
	table := counters.New(p.MaxCounters)
	defer table.Close()
	l := limiter.New(table, nil)
	l.SetRules(p.Rules)

	if p.Against != nil {
		p.rival = newRival(p.Against, p.MaxCounters)
		defer p.rival.table.Close()
	}

	var decisions *decisionWriter
	if p.Decisions != nil {
		decisions = newDecisionWriter(p.Decisions)
	}
	var answer limiter.Answer
	var query limiter.Query
	err := p.records.each(func(t int64, packed []byte) error {
		if err := p.record.unpack(packed); err != nil {
			return err
		}
		now := algorithms.Instant{Steady: t, Wall: t}
		query.Attributes, query.Costs = p.record.attributes, p.record.costs
		if err := l.CheckAt(now, &query, &answer); err != nil {
			return fmt.Errorf("check line %d: %w", p.record.line, err)
		}
		p.tally.add(t, query.Attributes, &answer)
		if p.rival != nil {
			if err := p.rival.decide(now, &query, &answer); err != nil {
				return fmt.Errorf("check line %d by the other rules: %w", p.record.line, err)
			}
		}
		if decisions != nil {
			if err := decisions.write(p.inputs, t, &p.record, &answer); err != nil {
				return err
			}
		}
		if p.decided%sweepEvery == sweepEvery-1 {
			table.Sweep(now, 0.1)
			if p.rival != nil {
				p.rival.table.Sweep(now, 0.1)
			}
		}
		return p.countProgress(&p.decided)
	})
	if err != nil {
		return err
	}
	p.tally.Evicted = table.Stats().Evicted
	if decisions != nil {
		err = decisions.buffer.Flush()
	}
	if err != nil {
		return fmt.Errorf("write decisions: %w", err)
	}
	return nil
}

// decision is one line of Decisions.
type decision struct {
	Input      string   `json:"file,omitempty"`
	Line       int64    `json:"line"`
	Time       string   `json:"time"`
	Allowed    bool     `json:"allowed"`
	DecidedBy  string   `json:"decided_by"`
	Rule       string   `json:"rule"`
	Key        any      `json:"key,omitempty"`
	Limit      string   `json:"limit,omitempty"`
	Unit       string   `json:"unit,omitempty"`
	Remaining  *int64   `json:"remaining,omitempty"`
	RetryAfter *int64   `json:"retry_after_ms,omitempty"`
	Delay      int64    `json:"delay_ms,omitempty"`
	Refusing   []string `json:"refused_by,omitempty"`
}

type decisionWriter struct {
	buffer *bufio.Writer
	json   *json.Encoder
}

func newDecisionWriter(w io.Writer) *decisionWriter {
	buffer := bufio.NewWriterSize(w, 64<<10)
	encoder := json.NewEncoder(buffer)
	encoder.SetEscapeHTML(false)
	return &decisionWriter{buffer: buffer, json: encoder}
}

// write describes a decision by its tightest limit, and names the rules that refused.
func (w *decisionWriter) write(inputs []Input, t int64, r *record, a *limiter.Answer) error {
	d := decision{
		Line: r.line, Time: time.Unix(0, t).UTC().Format(time.RFC3339Nano), Allowed: a.Allowed,
		DecidedBy: a.DecidedBy.String(),
	}
	if len(inputs) > 1 {
		d.Input = inputs[r.input].Name
	}

	if a.TightestIndex >= 0 {
		la := &a.Limits[a.TightestIndex]
		retry := la.RetryAfter.Milliseconds()
		if la.RetryAfter > 0 {
			retry = int64((la.RetryAfter + time.Millisecond - 1) / time.Millisecond)
		} else if la.RetryAfter == algorithms.Never {
			retry = -1
		}

		d.Rule = la.Rule.Name
		d.Limit = la.Limit.Name
		d.Unit = la.Limit.Unit
		d.Remaining = &la.Remaining
		d.RetryAfter = &retry
		d.Delay = int64((a.Delay() + time.Millisecond - 1) / time.Millisecond)
		d.Key = Key(la.Rule.SubjectOf(r.attributes))
	}

	for i := range a.Limits {
		la := &a.Limits[i]
		if n := len(d.Refusing); !la.Allowed && !la.Rule.Shadow && (n == 0 || d.Refusing[n-1] != la.Rule.Name) {
			d.Refusing = append(d.Refusing, la.Rule.Name)
		}
	}

	if err := w.json.Encode(&d); err != nil {
		return fmt.Errorf("write decisions: %w", err)
	}

	return nil
}

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/rlnode/rlnode/internal/tick"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
)

const (
	// debtsFile holds the debts that their owners have not acknowledged yet.
	debtsFile = "debts"
	// debtsInterval is how often changed debts are written: as often as counters.
	debtsInterval = time.Second
)

// counterFiles keep counters across restarts; empty without a data directory.
// The first file has the counters of the node's table (see tableFile), the
// second its fallback counters.
type counterFiles []counterFile

// counterFile is a file of counters.
type counterFile struct {
	*persist.CounterFile
	content string // what it holds, for the log
}

// tableFile returns the file with the counters of the node's table. There must be one.
func (files counterFiles) tableFile() counterFile { return files[0] }

// openFiles opens the files of counters, and registers their last write for
// release. restoreCounters reads them later, because that takes long.
func (n *Node) openFiles() error {
	// These steps are called in reverse: the loops end, then the files are closed,
	// and then usage that was counted late is handed over.
	n.onRelease(n.handOverLateUsage)
	n.onRelease(n.closeFiles)
	n.onRelease(func(context.Context) error {
		n.cancel()
		<-n.loops.Close()
		return nil
	})

	if !n.checkpoints {
		return nil
	}

	config := persist.DefaultCounterFileConfig()
	config.Dir = n.dir
	config.Source = n.table
	config.Now = n.clock.Now
	config.Logger = n.log

	if err := n.openFile(config, "counters"); err != nil {
		return err
	}

	config.File = persist.FallbackFile
	config.Source = n.fallback
	return n.openFile(config, "fallback counters")
}

func (n *Node) openFile(config persist.CounterFileConfig, content string) error {
	store, err := persist.OpenCounterFile(config)
	if err == nil {
		n.files = append(n.files, counterFile{store, content})
	}
	return err
}

// restoreCounters restores the counters of the last checkpoint, then those of
// fallback, then the debts, and starts to write each.
func (n *Node) restoreCounters() error {
	for i, f := range n.files {
		found, err := f.Load(n.clock.Now())
		if err != nil {
			return fmt.Errorf("load the %s: %w", f.content, err)
		}

		n.logLoaded(f, found)

		// Slots are in the first file, the table's. A new node's file is incomplete
		// without a loss. If that of an old node is, the node had another file, or was
		// killed before it had saved its slots.
		if i == 0 && (found.DamagedFrames > 0 || found.SetAside || found.Incomplete && n.isOld) {
			n.markSlotsLost()
		}

		if err := f.Start(); err != nil {
			return err
		}
	}

	n.loops.Go(n.sweep)
	if n.checkpoints {
		n.restoreDebts()
		n.loops.Go(n.followDebts)
	}

	return nil
}

// logLoaded logs what Load found in a file.
func (n *Node) logLoaded(f counterFile, found persist.LoadStats) {
	if found.DamagedFrames > 0 || found.NoRoom > 0 {
		n.log.Warn("some "+f.content+" can't be restored and start afresh",
			"restored", found.Restored, "damaged_frames", found.DamagedFrames, "no_room", found.NoRoom)
		return
	}

	level := slog.LevelDebug
	if found.Restored > 0 {
		level = slog.LevelInfo
	}
	n.log.Log(n.ctx, level, f.content+" loaded",
		"restored", found.Restored, "expired", found.Expired, "took", found.Duration)
}

// markSlotsLost says that the file may have had slots that are unknown now.
// This node then grants no others until those have certainly ended.
func (n *Node) markSlotsLost() {
	n.log.Warn("slots may be lost with the file of counters; no others are granted until the lost ones have certainly ended")
	now := n.clock.Now()
	for p := range ring.Partitions {
		n.table.MarkSlotsLost(now, p)
	}
}

// checkpoint writes what has changed in the table, copies of other nodes'
// counters included. It returns when that is on disk.
func (n *Node) checkpoint(ctx context.Context) error {
	if len(n.files) == 0 {
		return persist.ErrNotLoaded
	}
	return n.files.tableFile().Checkpoint(ctx)
}

// saveAhead writes the changed counters, so that closeFiles has little left to write.
func (n *Node) saveAhead(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()

	var errs []error
	for _, f := range n.files {
		errs = append(errs, f.Checkpoint(ctx))
	}
	return errors.Join(errs...)
}

// closeFiles writes what has changed since the last write, and closes the files.
func (n *Node) closeFiles(ctx context.Context) error {
	// What this node decided from now on would be in no file. If its partitions
	// could not be handed over, other nodes would still ask it.
	n.keeper.StopDeciding()

	var errs []error
	// Before the debts are restored, the file may have some that were not read, so
	// it must stay.
	if n.debtsRestored {
		errs = append(errs, n.writeDebts())
	}

	for _, f := range n.files {
		errs = append(errs, f.Close(ctx))
	}
	return errors.Join(errs...)
}

// debtsSaving tracks whether the keeper's debts are on disk. They are written
// as often as counters, so a restart loses no more of them.
type debtsSaving struct {
	debtsRestored bool   // the file's debts are restored
	debtsWritten  uint64 // what Keeper.DebtChanges returned when the file was written; used by one goroutine at a time
}

func (n *Node) savedDebts() persist.SmallFile { return persist.NewSmallFile(n.dir, debtsFile) }

// restoreDebts restores the debts from their file.
func (n *Node) restoreDebts() {
	b, err := n.savedDebts().Read()
	if err == nil && len(b) > 0 {
		var count int
		count, err = n.keeper.RestoreDebts(b)
		if count > 0 {
			n.log.Info("debts restored; they will be reported to the owners", "counters", count)
		}
	}
	if err != nil {
		n.log.Warn("debts lost: what was admitted without the owners will never count there", "error", err)
	}

	n.debtsRestored = true
	n.debtsWritten = n.keeper.DebtChanges()
}

// followDebts writes the debts as they change.
func (n *Node) followDebts() {
	failing := false
	for range tick.Every(n.ctx.Done(), debtsInterval) {
		err := n.writeDebts()
		if err != nil && !failing {
			n.log.Error("debts to owners can't be written to disk, retrying", "error", err)
		}
		failing = err != nil
	}
}

func (n *Node) writeDebts() error {
	// The number is read before the debts. If they change in between, the next call
	// sees another number and writes them again.
	changed := n.keeper.DebtChanges()
	if changed == n.debtsWritten {
		return nil
	}

	if err := n.savedDebts().WriteSynced(n.keeper.AppendDebts(nil)); err != nil {
		return err
	}
	n.debtsWritten = changed
	return nil
}

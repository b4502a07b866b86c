package notebooks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpulab/gpulab/internal/units"
)

// advanceJobStart makes a job's pod once everything it needs is there, then
// watches it come up. The pod's name is the job's alone: it is made once.
func (s *Service) advanceJobStart(ctx context.Context, l Launch) (Launch, error) {
	if p, ok := s.podOf(l); ok {
		return s.observeJob(ctx, l, p), nil
	}
	now := s.now()
	if l.Pod != "" {
		return s.vanished(l, now), nil
	}
	t := s.look(l.ID)
	if !t.prepared {
		if err := s.prepare(ctx, l); err != nil {
			return l, err
		}
	}
	if !t.asked.IsZero() && now.Sub(t.asked) < s.patience.look {
		return l, nil // the watch has not seen it yet
	}
	if reason := s.hold(); reason != "" {
		s.with(l.ID, func(t *track) { t.reason = reason })
		return l, nil
	}
	s.with(l.ID, func(t *track) { t.begin(StepImage, now) })
	options, err := s.options(ctx, l)
	if err != nil {
		return l, err
	}
	o, err := readOptions(options)
	if err != nil {
		return l, err
	}
	if o.HomeReadOnly {
		return failed(l, EndQuota, "The home is full, and a job could not write what it finds out. Delete some files, "+
			"then run it again."), nil
	}
	program, err := s.rows.program(ctx, l.ID)
	if err != nil {
		return l, err
	}
	if l.Job.ArrayJob != 0 && forSlurm(program.Script) {
		array, err := s.rows.get(ctx, l.Job.ArrayJob)
		if err != nil {
			return l, err
		}
		elements, err := ParseArray(array.Job.Array)
		if err != nil {
			return l, err
		}
		program.Env = mergedEnv(elements.slurmEnv(), program.Env)
	}
	pod, err := s.jobPod(l, program, o)
	if gone := (*JobError)(nil); errors.As(err, &gone) {
		return failed(l, EndFailed, gone.Text), nil
	}
	if err != nil {
		return l, err
	}
	if err := s.cfg.Cluster.CreatePod(ctx, pod); err != nil {
		return l, err
	}
	s.with(l.ID, func(t *track) {
		t.asked = s.now()
		t.clear()
	})
	return l, nil
}

// observeJob follows a job's pod until its program runs.
func (s *Service) observeJob(ctx context.Context, l Launch, p PodInfo) Launch {
	now := s.now()
	l.Pod, l.Node = p.Name, p.Node
	switch {
	case l.goesOn(p):
	case p.Finished, p.Exited:
		if !p.Started.IsZero() {
			l.Ready = p.Started
		}
		return s.jobEnded(ctx, l, p)
	case p.Terminating:
		return failed(l, EndInterrupted, "It was interrupted: its pod was deleted from outside gpulab.")
	}
	if !p.Started.IsZero() {
		s.with(l.ID, func(t *track) {
			t.finish(now)
			t.clear()
		})
		l.State, l.Ready, l.Reason = Running, now, ""
		l.GPUUUIDs = s.devices(p)
		return l
	}
	if why := startFailure(p, now, s.patience.unscheduled); why != "" {
		return failed(l, EndFailed, why)
	}
	s.with(l.ID, func(t *track) { t.begin(stepOf(p), now) })
	if now.Sub(p.Created) > s.patience.slow {
		s.explainSlow(ctx, l, p)
	}
	return l
}

// jobEnded ends a job whose pod is over, with the reason.
func (s *Service) jobEnded(ctx context.Context, l Launch, p PodInfo) Launch {
	if p.Exited && p.StatusReason == "" && p.ExitCode != 0 {
		p = s.evicted(ctx, p)
	}
	kills := 0
	if s.cfg.MemoryKills != nil {
		kills, _ = s.cfg.MemoryKills(p)
	}
	kills = max(kills, s.look(l.ID).kills)
	code, words := jobEndWords(p, l.Job.Limit, kills > 0)
	if (code == EndExited || code == EndInterrupted) && s.beforeBoot(p.Created, p.Node) {
		return s.interruptedByRestart(l)
	}
	if code == EndSucceeded || code == EndExited {
		job := *l.Job
		job.ExitCode = &p.ExitCode
		l.Job = &job
	}
	return failed(l, code, words)
}

// jobEndWords says how a job ended.
func jobEndWords(p PodInfo, limit time.Duration, memoryRanOut bool) (code, words string) {
	outOfTime := fmt.Sprintf("It ran into its time limit of %s and was ended.", units.Lasting(limit))
	killed := p.ExitCode == 137 || p.ExitCode == 143 || p.ExitCode == exitSaved
	switch {
	case p.StatusReason == "DeadlineExceeded":
		return EndTimeLimit, outOfTime
	case p.StatusReason == "UnexpectedAdmissionError" && !p.Started.IsZero():
		return EndInterrupted, "It was interrupted: its machine started again."
	case p.StatusReason != "", !p.Exited, p.ExitReason == "StartError", p.ExitReason == "ContainerCannotRun":
		return endWords(p)
	case p.ExitCode == 0:
		return EndSucceeded, "It has ended well."
	// The reason may be from a part of it that was ended long before: not where it was asked to end.
	case (p.ExitReason == "OOMKilled" || p.ExitCode == 137 && memoryRanOut) && !p.Terminating && p.ExitCode != 143 &&
		p.ExitCode != exitSaved:
		return EndOutOfMemory, outOfMemory(p.MemoryLimit)
	case killed && !p.Started.IsZero() && p.Ended.Sub(p.Started) >= limit:
		return EndTimeLimit, outOfTime
	case p.ExitCode == exitSaved && p.Terminating:
		return EndInterrupted, "It was interrupted: its pod was deleted from outside gpulab."
	}
	code, words = endWords(p)
	if p.ExitCode == 127 && lastLine(p.ExitMessage) == "" {
		words += " A program was not found."
	}
	return code, words
}

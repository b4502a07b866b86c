package main

import (
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/mail"
	"github.com/gpulab/gpulab/internal/notebooks"
)

// noticeKeys are what tells notices apart.
func noticeKeys(list []mail.Notice) string {
	var keys []string
	for _, n := range list {
		keys = append(keys, n.Key)
	}
	return strings.Join(keys, ", ")
}

// TestWhoIsToldOfLaunches: who waited for a GPU, and whose job took long; not who sits before the page.
func TestWhoIsToldOfLaunches(t *testing.T) {
	now := time.Now()
	launch := func(id int64, waited time.Duration, edit func(*notebooks.Launch)) notebooks.Launch {
		l := notebooks.Launch{ID: id, UserID: 7, Title: "Training", GPUs: 1, State: notebooks.Running, Requested: now.Add(-waited - time.Minute), Started: now.Add(-time.Minute), Ready: now}
		if edit != nil {
			edit(&l)
		}
		return l
	}
	turn := turnNotices([]notebooks.Launch{
		launch(1, 10*time.Minute, nil),
		launch(2, 10*time.Second, nil),
		launch(3, 10*time.Minute, func(l *notebooks.Launch) { l.GPUs = 0 }),
		launch(4, 10*time.Minute, func(l *notebooks.Launch) { l.State = notebooks.Starting }),
		launch(5, 10*time.Minute, func(l *notebooks.Launch) { l.Job = &notebooks.Job{} }),
		launch(6, 10*time.Minute, func(l *notebooks.Launch) { l.Ready = now.Add(-2 * time.Hour) }),
	}, now.Add(-time.Hour))
	if noticeKeys(turn) != "1" || turn[0].To[0] != 7 || turn[0].Path != "/launches/1" || !strings.Contains(turn[0].Text, "waited for 10 min") {
		t.Errorf("told of their turn: %+v", turn)
	}
	job := func(id int64, took time.Duration, code string) notebooks.Launch {
		return notebooks.Launch{ID: id, UserID: 7, Title: "train.py", State: notebooks.Ended, EndCode: code, Reason: "Its program ended with exit code 1.", Requested: now.Add(-took), Ready: now.Add(-took), Ended: now, Job: &notebooks.Job{}}
	}
	jobs := jobNotices([]notebooks.Launch{job(1, time.Hour, notebooks.EndExited), job(2, time.Minute, notebooks.EndExited), job(3, time.Hour, notebooks.EndCancelled), job(4, time.Hour, notebooks.EndOutOfMemory)})
	if noticeKeys(jobs) != "1, 4" || !strings.Contains(jobs[0].Text, "exit code 1") || jobs[0].Path != "/jobs/1" {
		t.Errorf("told of jobs: %+v", jobs)
	}
}

// TestMailTypes: a script's --mail-type decides which mails the owner gets, however long the job took.
func TestMailTypes(t *testing.T) {
	now := time.Now()
	var ended, active []notebooks.Launch
	for i, mails := range [][]string{nil, {"NONE"}, {notebooks.MailEnd}, {notebooks.MailFail}, {notebooks.MailTimeLimit}, {notebooks.MailBegin}} {
		for j, code := range []string{notebooks.EndSucceeded, notebooks.EndExited, notebooks.EndTimeLimit, notebooks.EndCancelled} {
			ended = append(ended, notebooks.Launch{ID: int64(10*i + j), UserID: 7, Title: "fit", State: notebooks.Ended, EndCode: code, Requested: now.Add(-time.Minute), Ready: now.Add(-time.Minute), Ended: now, Job: &notebooks.Job{Mail: mails}})
		}
		active = append(active, notebooks.Launch{ID: int64(i), UserID: 7, Title: "fit", State: notebooks.Running, Ready: now, Job: &notebooks.Job{Mail: mails}})
	}
	list := jobNotices(ended)
	if noticeKeys(list) != "20, 21, 22, 31, 32, 42" || !list[0].Asked {
		t.Errorf("told of ends: %+v", list)
	}
	begun := beginNotices(active, now.Add(-time.Hour))
	if noticeKeys(begun) != "5 began" || begun[0].Subject != "Job “fit” has begun" || !begun[0].Asked || len(beginNotices(active, now.Add(time.Hour))) > 0 {
		t.Errorf("told of beginnings: %+v", begun)
	}
}

// TestWhatAdministratorsAreToldOf: machines that are away for longer than a restart takes, and GPUs that need a hand.
func TestWhatAdministratorsAreToldOf(t *testing.T) {
	now := time.Now()
	lost := lostNotices([]ctl.Node{
		{Name: "gpu-one", State: ctl.NodeLost, LastContact: now.Add(-time.Hour), Detail: "It has not been heard."},
		{Name: "gpu-two", State: ctl.NodeLost, LastContact: now.Add(-time.Minute)},
		{Name: "gpu-three", State: ctl.NodeReady, LastContact: now.Add(-time.Hour)},
	}, now)
	if noticeKeys(lost) != "gpu-one" {
		t.Errorf("told of machines: %+v", lost)
	}
	number := 1
	faults := (&appliance{}).faultNotices([]history.Event{
		{Node: "gpu-one", UUID: "GPU-1", Number: &number, Kind: history.EventXID, XID: 79, Last: now},
		{Node: "gpu-one", UUID: "GPU-1", Number: &number, Kind: history.EventXID, XID: 13, Last: now}, // a program's mistake
		{Node: "gpu-one", UUID: "GPU-1", Number: &number, Kind: history.EventGPULost, Last: now, Detail: "No answer."},
		{Node: "gpu-one", UUID: "GPU-1", Number: &number, Kind: history.EventGPUBack, Last: now},
		{Node: "gpu-one", Kind: history.EventAsleep, Last: now},
	})
	if noticeKeys(faults) != "gpu-one GPU-1 xid 79, gpu-one GPU-1 gpu-lost 0" || !strings.Contains(faults[0].Subject, "GPU 1 of gpu-one: GPU has fallen off the bus") || faults[0].Path != "/gpus/GPU-1" {
		t.Errorf("told of GPUs: %+v", faults)
	}
}

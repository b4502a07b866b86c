package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gpulab/gpulab/internal/backup"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/units"
)

// When somebody is reminded of a backup.
const (
	firstBackup = 3 * 24 * time.Hour  // after the lab's first account, where there never was one
	nextBackup  = 30 * 24 * time.Hour // after the last one
)

// backupWords says when the lab was saved last, and what to do about it, "" for
// nothing.
func (l *appliance) backupWords(ctx context.Context) (text, next string, err error) {
	setting, err := l.store.Setting(ctx, backup.LastSetting)
	if err != nil {
		return "", "", err
	}
	last, err := backup.ParseLast(setting)
	if err != nil {
		return "", "", err
	}
	now := time.Now()
	if last == nil {
		people, err := l.people.List(ctx)
		if err != nil {
			return "", "", err
		}
		for i := range people {
			if now.Sub(people[i].Created) > firstBackup {
				next = "`sudo gpulab backup FILE` on the head machine makes one"
			}
		}
		return "There is no backup of this lab yet", next, nil
	}
	with := "without homes"
	if last.Homes {
		with = "with homes"
	}
	if now.Sub(last.Made) > nextBackup {
		next = "`sudo gpulab backup FILE` on the head machine makes another"
	}
	return fmt.Sprintf("Last backup %s ago, %s", units.Lasting(max(now.Sub(last.Made), 0)), with), next, nil
}

// backupComponent shows it beside the lab's parts. It is never more than a hint:
// whoever saves the machine otherwise needs none of ours.
func (l *appliance) backupComponent(ctx context.Context) ctl.Component {
	text, next, err := l.backupWords(ctx)
	if err != nil {
		return ctl.Component{Name: "backup", State: ctl.Warning, Detail: err.Error()}
	}
	return ctl.Component{Name: "backup", State: ctl.OK, Detail: text, NextStep: next}
}

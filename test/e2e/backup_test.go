//go:build e2e

package e2e

import (
	"strings"
	"testing"
)

// Where the backup lies meanwhile: no file of the host that a reset could
// leave, for it is gone with its memory.
const backupFile = "/tmp/lab.tar.zst"

// backupStory is a lab that is saved, lost and restored.
type backupStory struct{ fingerprint, owner string }

// save makes a backup of the running lab: its notebooks notice nothing.
func (s *backupStory) save(t *testing.T, a *appliance) {
	s.fingerprint = a.MustGpulab(a.ctx, "ca", "--fingerprint")
	pods := a.notebookPods(t)
	if pods == "" {
		t.Error("no notebook runs while the backup is made")
	}
	checkPods := func() {
		t.Helper()
		if now := a.notebookPods(t); now != pods {
			t.Errorf("the notebooks' pods were\n%s\nand are\n%s", pods, now)
		}
	}
	a.MustRun(a.ctx, "sh", "-ec", `cd /var/lib/gpulab/homes/1; owner=$(stat -c %u .)
		setpriv --reuid $owner --regid $owner --clear-groups sh -ec 'mkdir -m 0750 thesis && echo "chapter one" >thesis/text && ln thesis/text thesis/same && ln -s /etc/shadow thesis/link && chmod 0640 thesis/text'`)
	s.owner = a.MustRun(a.ctx, "stat", "-c", "%u:%g %a", "/var/lib/gpulab/homes/1/thesis/text")

	result := a.Gpulab(a.ctx, "backup", "--homes", backupFile)
	if result.Code != 0 || !strings.Contains(result.Stdout, "secrets") {
		t.Fatalf("exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	t.Logf("%s\n%s%s", result.Took, result.Stdout, result.Stderr)
	checkPods()
	if mode := strings.TrimSpace(a.MustRun(a.ctx, "stat", "-c", "%a %u", backupFile)); mode != "600 0" {
		t.Errorf("the file's mode and owner are %s", mode)
	}
	checkFailure(t, a.Gpulab(a.ctx, "backup", backupFile), 1, "--force")
	if got := a.MustGpulab(a.ctx, "backup", "--verify", backupFile); !strings.Contains(got, "homes") || !strings.Contains(got, strings.TrimSpace(s.fingerprint)) {
		t.Errorf("--verify says\n%s", got)
	}
	// Through a pipe, as it would be encrypted.
	a.MustRun(a.ctx, "sh", "-ec", a.Binary()+" backup - | "+a.Binary()+" backup --verify -")
	checkFailure(t, a.Gpulab(a.ctx, "restore", "--dry-run", backupFile), 1, "this machine has a lab with", "--replace")
	checkFailure(t, a.Run(a.ctx, "sh", "-c", "head -c 20000 "+backupFile+" | "+a.Binary()+" restore --replace -"), 1, "damaged")
	checkPods()
	if got := a.MustGpulab(a.ctx, "status"); !strings.Contains(got, "Last backup") {
		t.Errorf("status says\n%s", got)
	}
	b := a.browser.For(t)
	b.Open(pages + "/")
	b.WaitText("#backup", "Last backup")
}

// restore brings it back where another lab, that nobody uses yet, has been made
// meanwhile: the old password opens it, in a browser that trusts the old
// authority alone, and what was in the home is there.
func (s *backupStory) restore(t *testing.T, a *appliance) {
	result := a.Gpulab(a.ctx, "restore", backupFile)
	if result.Code != 0 {
		t.Fatalf("restore: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	t.Logf("restore took %s\n%s", result.Took, result.Stdout)
	if result = a.Gpulab(a.ctx, "init", "--yes"); result.Code != 0 {
		t.Fatalf("init: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	t.Logf("init took %s", result.Took)
	if got := a.MustGpulab(a.ctx, "ca", "--fingerprint"); got != s.fingerprint {
		t.Errorf("the authority was %s and is %s", s.fingerprint, got)
	}
	if got := a.MustRun(a.ctx, "stat", "-c", "%u:%g %a", "/var/lib/gpulab/homes/1/thesis/text"); got != s.owner {
		t.Errorf("the file was %s and is %s", s.owner, got)
	}
	b := a.browser.For(t)
	b.Open(pages + "/")
	b.WaitFor("the sign-in page, for everybody is signed out", `location.pathname === "/login"`)
	signInBrowser(b, pages, adminHandle, adminPassword)
	b.WaitText("#backup", "with homes")
	launch(b, "cpu", "After the restore")
	waitJupyterLab(b, adminHandle)
	if got := newKernel(b).run(t, `import os; print(open("/home/`+adminHandle+`/thesis/text").read(), os.stat("/home/`+adminHandle+`/thesis/same").st_nlink)`); !strings.HasPrefix(got, "chapter one") || !strings.HasSuffix(got, "2") {
		t.Errorf("the file in the home says %q", got)
	}
	if got := a.MustGpulab(a.ctx, "audit", "list"); !strings.Contains(got, "restored the lab from a backup") && !strings.Contains(got, "backup.restore") {
		t.Errorf("the audit log does not say so:\n%.2000s", got)
	}
	a.MustGpulab(a.ctx, "audit", "verify")
	a.checkReset(t)
}

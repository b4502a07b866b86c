package ctl

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/diskspace"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/report"
	"github.com/gpulab/gpulab/internal/users"
)

// daemon is a Daemon that behaves: it keeps users and refuses doubles.
type daemon struct {
	people []users.User
	heard  []string // what changed nothing here
}

func (d *daemon) Status(context.Context) (Status, error) {
	return Status{Ready: true, URL: "https://lab"}, nil
}

func (d *daemon) Metrics(_ context.Context, w io.Writer) error {
	if len(d.people) == 0 {
		return errors.New("there is nothing to tell yet")
	}
	_, err := io.WriteString(w, "gpulab_up 1\n")
	return err
}

func (d *daemon) WatchBoot(_ context.Context, fn func(Boot) error) error {
	for _, b := range []Boot{{Stages: []Stage{{Name: "runtime", State: "active"}}}, {Ready: true}} {
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

func (d *daemon) AdminLink(context.Context) (Link, error) { return Link{URL: "https://lab/setup"}, nil }
func (d *daemon) Charts(context.Context) ([]Chart, error) { return []Chart{{Name: "hub"}}, nil }
func (d *daemon) Users(_ context.Context, q users.Query) ([]users.Person, error) {
	var list []users.Person
	for _, u := range d.people {
		if q.Text == "" || q.Text == u.Handle {
			list = append(list, users.Person{User: u})
		}
	}
	return list, nil
}

func (d *daemon) AddUser(_ context.Context, u NewUser) (UserWithLink, error) {
	for _, p := range d.people {
		if p.Handle == u.Handle {
			return UserWithLink{}, errors.New("ada is taken; choose another handle")
		}
	}
	d.people = append(d.people, users.User{Handle: u.Handle})
	return UserWithLink{User: users.User{Handle: u.Handle}}, nil
}

func (d *daemon) PasswordLink(_ context.Context, handle string) (UserWithLink, error) {
	return UserWithLink{User: users.User{Handle: handle}}, nil
}

func (d *daemon) LendGPU(_ context.Context, which string, anyway bool) (gpu.GPU, error) {
	return gpu.GPU{Device: gpu.Device{UUID: which}, LentAnyway: anyway}, nil
}

func (d *daemon) Report(_ context.Context, weeks int) (report.Report, error) {
	return report.Report{Weeks: make([]report.Part, weeks)}, nil
}

func (d *daemon) Usage(_ context.Context, f history.Filter, by history.By) ([]history.Usage, error) {
	if f.GPU == "9" {
		return nil, &history.WrongError{}
	}
	return []history.Usage{{Name: f.User, Kind: history.Kind(by), Hour: f.From}}, nil
}

func (d *daemon) Disk(context.Context) (Disk, error) {
	return Disk{Filesystems: []diskspace.Filesystem{{Path: "/lab", Level: diskspace.Refusing}}, Parts: []diskspace.Part{{Name: "homes", Bytes: 7}}}, nil
}

func (d *daemon) CheckGPU(context.Context) (string, error) { return "", errors.New("no GPU is free") }

func (d *daemon) ImportUsers(_ context.Context, r ImportRequest) (ImportResult, error) {
	return ImportResult{Applied: !r.DryRun, Plan: users.ImportPlan{New: len(r.Text)}}, nil
}

func (d *daemon) Images(context.Context) ([]Image, error) { return []Image{{Ref: "x:1"}}, nil }

func (d *daemon) ImportImage(_ context.Context, r io.Reader, as string) ([]Image, error) {
	if as == "refused" { // at once, while much is still to come
		return nil, errors.New("this is no container image")
	}
	n, err := io.Copy(io.Discard, r)
	return []Image{{Ref: as, Size: n}}, err
}

func (d *daemon) PullImage(_ context.Context, ref string, fn func(Pull) error) error {
	if err := fn(Pull{Done: 1, Total: 2}); err != nil {
		return err
	}
	if ref == "none" {
		return errors.New("there is none")
	}
	return fn(Pull{Image: &Image{Ref: ref}})
}
func (d *daemon) RemoveImage(_ context.Context, ref string) error {
	return errors.New(ref + " is in use")
}

func (d *daemon) Quotas(context.Context) (QuotaList, error) {
	return QuotaList{Rules: []quota.Rule{{Subject: quota.Subject{Role: users.RoleGuest}, Kind: quota.GPUs, Value: 1}}}, nil
}

func (d *daemon) QuotaOf(_ context.Context, handle string) ([]quota.Limit, error) {
	return []quota.Limit{{Kind: quota.GPUs, From: quota.Subject{User: handle}}}, nil
}

func (d *daemon) SetQuota(_ context.Context, q SetQuota) error {
	if q.Value == nil {
		return errors.New("taken away: " + q.Subject.String())
	}
	return nil
}
func (d *daemon) RecommendedQuotas(_ context.Context, act string) (RecommendedQuotas, error) {
	return RecommendedQuotas{Rules: []quota.Rule{{Kind: quota.Notebooks, Value: 10}}, Advised: act == ""}, nil
}
func (d *daemon) GrantQuota(_ context.Context, g quota.Grant) (quota.Grant, error) { return g, nil }
func (d *daemon) EndQuotaGrant(_ context.Context, id int64) (quota.Grant, error) {
	return quota.Grant{ID: id}, nil
}

func serve(t *testing.T) (string, *Client) {
	t.Helper()
	return serveDaemon(t, &daemon{})
}

func serveDaemon(t *testing.T, d Daemon) (string, *Client) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "run", "gpulab.sock")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, socket, d) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	for range 200 {
		if conn, err := net.Dial("unix", socket); err == nil {
			_ = conn.Close()
			return socket, NewClient(socket)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the socket did not open")
	return "", nil
}

func TestRoundTrips(t *testing.T) {
	_, c := serve(t)
	ctx := context.Background()
	if s, err := c.Status(ctx); err != nil || !s.Ready || s.URL != "https://lab" {
		t.Errorf("Status: %+v %v", s, err)
	}
	if err := c.Metrics(ctx, io.Discard); err == nil || err.Error() != "there is nothing to tell yet" {
		t.Errorf("metrics that fail: %v", err)
	}
	if u, err := c.AddUser(ctx, NewUser{Handle: "ada"}); err != nil || u.User.Handle != "ada" {
		t.Errorf("AddUser: %+v %v", u, err)
	}
	if _, err := c.AddUser(ctx, NewUser{Handle: "ada"}); err == nil || err.Error() != "ada is taken; choose another handle" {
		t.Errorf("a double gave %v", err)
	}
	if list, err := c.Users(ctx, users.Query{Text: "ada"}); err != nil || len(list) != 1 {
		t.Errorf("Users: %v %v", list, err)
	}
	if g, err := c.LendGPU(ctx, "GPU-a/b", true); err != nil || g.UUID != "GPU-a/b" || !g.LentAnyway {
		t.Errorf("LendGPU: %+v %v", g, err)
	}
	asked := history.Filter{From: time.Unix(1e9, 0).UTC(), User: `a"b/c`}
	if u, err := c.Usage(ctx, asked, history.ByHour); err != nil || len(u) != 1 || u[0].Name != `a"b/c` || u[0].Kind != "hour" || !u[0].Hour.Equal(asked.From) {
		t.Errorf("Usage: %+v %v", u, err)
	}
	var problem *Problem
	if _, err := c.Usage(ctx, history.Filter{GPU: "9"}, history.ByUser); !errors.As(err, &problem) || !problem.Wrong {
		t.Errorf("a wrong question: %v", err)
	}
	if _, err := c.AddUser(ctx, NewUser{Handle: "ada"}); !errors.As(err, &problem) || problem.Wrong {
		t.Errorf("a refusal: %+v", problem)
	}
	// The largest list passes, though JSON makes it longer.
	if r, err := c.ImportUsers(ctx, ImportRequest{Text: make([]byte, 4<<20)}); err != nil || !r.Applied || r.Plan.New != 4<<20 {
		t.Errorf("ImportUsers: %+v %v", r, err)
	}
	var text strings.Builder
	if err := c.Metrics(ctx, &text); err != nil || text.String() != "gpulab_up 1\n" {
		t.Errorf("Metrics: %q %v", text.String(), err)
	}
	if _, err := c.CheckGPU(ctx); err == nil || err.Error() != "no GPU is free" {
		t.Errorf("CheckGPU: %v", err)
	}
	var seen []Boot
	if err := c.WatchBoot(ctx, func(b Boot) error { seen = append(seen, b); return nil }); err != nil || len(seen) != 2 || !seen[1].Ready {
		t.Errorf("WatchBoot: %+v %v", seen, err)
	}
}

func TestImagesOverTheSocket(t *testing.T) {
	_, c := serve(t)
	ctx := t.Context()
	if list, err := c.Images(ctx); err != nil || len(list) != 1 {
		t.Errorf("Images: %v %v", list, err)
	}
	const size = 64 << 20
	zeros := func() io.Reader { return io.LimitReader(zero{}, size) }
	if list, err := c.ImportImage(ctx, zeros(), `a&as=b "c"`); err != nil || len(list) != 1 || list[0].Ref != `a&as=b "c"` || list[0].Size != size {
		t.Errorf("ImportImage: %+v %v", list, err)
	}
	if _, err := c.ImportImage(ctx, zeros(), "refused"); err == nil || err.Error() != "this is no container image" {
		t.Errorf("an import that is refused: %v", err)
	}
	if _, err := c.ImportImage(ctx, io.MultiReader(io.LimitReader(zero{}, size), broken{}), "x"); err == nil || !strings.Contains(err.Error(), "the disk is sick") {
		t.Errorf("a file that cannot be read: %v", err)
	}
	var seen []Pull
	if err := c.PullImage(ctx, "x", func(p Pull) error { seen = append(seen, p); return nil }); err != nil || len(seen) != 2 || seen[0].Total != 2 || seen[1].Image == nil {
		t.Errorf("PullImage: %+v %v", seen, err)
	}
	if err := c.PullImage(ctx, "none", func(Pull) error { return nil }); err == nil || err.Error() != "there is none" {
		t.Errorf("a pull that fails: %v", err)
	}
	if err := c.RemoveImage(ctx, "a/b:1"); err == nil || err.Error() != "a/b:1 is in use" {
		t.Errorf("RemoveImage: %v", err)
	}
}

type zero struct{}

func (zero) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the disk is sick") }

func TestNotRunning(t *testing.T) {
	if _, err := NewClient(filepath.Join(t.TempDir(), "none.sock")).Status(context.Background()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("got %v", err)
	}
}

func TestSocketIsForRootAlone(t *testing.T) {
	socket, _ := serve(t)
	for path, want := range map[string]os.FileMode{socket: 0o600, filepath.Dir(socket): 0o700} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v (%v)", path, info.Mode().Perm(), want, err)
		}
	}
}

// While the socket is opened, the rest of the process makes files with the modes that it
// gives them.
func TestSocketLeavesOtherFilesAlone(t *testing.T) {
	dir, stop, made := t.TempDir(), make(chan struct{}), make(chan []string, 1)
	go func() {
		var wrong []string
		for n := 0; ; n++ {
			select {
			case <-stop:
				made <- wrong
				return
			default:
			}
			folder := filepath.Join(dir, strconv.Itoa(n))
			if err := os.Mkdir(folder, 0o755); err != nil {
				wrong = append(wrong, err.Error())
			} else if info, err := os.Stat(folder); err != nil || info.Mode().Perm()&0o700 != 0o700 {
				wrong = append(wrong, folder)
			}
		}
	}()
	socket := filepath.Join(t.TempDir(), "gpulab.sock")
	for range 500 {
		l, err := listen(socket)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the socket has mode %v, %v", info.Mode(), err)
		}
		_ = l.Close()
	}
	close(stop)
	if wrong := <-made; len(wrong) > 0 {
		t.Errorf("%d folders have the wrong mode, such as %s", len(wrong), wrong[0])
	}
}

func TestSecondDaemonIsRefused(t *testing.T) {
	socket, _ := serve(t)
	if err := Serve(context.Background(), socket, &daemon{}); err == nil || !strings.Contains(err.Error(), "already runs") {
		t.Errorf("got %v", err)
	}
}

func TestQuotasOverTheSocket(t *testing.T) {
	_, c := serve(t)
	ctx := t.Context()
	if q, err := c.Quotas(ctx); err != nil || len(q.Rules) != 1 || q.Rules[0].Subject.Role != users.RoleGuest {
		t.Errorf("%+v, %v", q, err)
	}
	if r, err := c.RecommendedQuotas(ctx, ""); err != nil || len(r.Rules) != 1 || !r.Advised {
		t.Errorf("%+v %v", r, err)
	}
	if r, err := c.RecommendedQuotas(ctx, SettleSet); err != nil || r.Advised {
		t.Errorf("%+v %v", r, err)
	}
	if l, err := c.QuotaOf(ctx, "ada"); err != nil || len(l) != 1 || l[0].From.User != "ada" {
		t.Errorf("%+v, %v", l, err)
	}
	value := 0.0 // is not the same as none
	if err := c.SetQuota(ctx, SetQuota{Kind: quota.GPUs, Value: &value}); err != nil {
		t.Error(err)
	}
	if err := c.SetQuota(ctx, SetQuota{Subject: quota.Subject{Group: "vision"}, Kind: quota.GPUs}); err == nil || err.Error() != "taken away: group:vision" {
		t.Error(err)
	}
	ends := time.Now().UTC().Truncate(time.Second)
	if g, err := c.GrantQuota(ctx, quota.Grant{User: "ada", Kind: quota.Memory, Extra: 1, Ends: ends}); err != nil || g.User != "ada" || !g.Ends.Equal(ends) {
		t.Errorf("%+v, %v", g, err)
	}
	if g, err := c.EndQuotaGrant(ctx, 7); err != nil || g.ID != 7 {
		t.Errorf("%+v, %v", g, err)
	}
}

package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// A deviceStart is the answer to the wish to sign in: RFC 8628.
type deviceStart struct {
	DeviceCode string `json:"deviceCode"`
	UserCode   string `json:"userCode"`
	ExpiresIn  int    `json:"expiresIn"` // seconds
	Interval   int    `json:"interval"`  // seconds between questions
}

// A deviceAnswer is what came of it so far.
type deviceAnswer struct {
	State    string    `json:"state"` // pending or approved
	Interval int       `json:"interval"`
	Token    string    `json:"token"`
	Scope    string    `json:"scope"`
	Handle   string    `json:"handle"`
	Expires  time.Time `json:"expires"`
}

type loginOptions struct {
	scope, fingerprint string
	days               int
	noBrowser, asJSON  bool
}

func newLogin(a *App) *cobra.Command {
	var o loginOptions
	c := &cobra.Command{
		Use: "login [ADDRESS]", Short: "Sign this computer in to a lab, with your browser",
		Long: `Sign this computer in to a lab. Your browser opens the lab's page, where you confirm
that it is you; no password is typed here. The command then keeps an access token
for you alone, which ends after some days and can be revoked on the page of your
account.

A lab that signs its certificate itself is trusted once you have compared the
fingerprint shown here with the one that an admin of the lab tells you. From then
on this computer takes nothing else for that lab.

The scopes: read sees what you see; launch also starts and stops your notebooks;
full does everything that your role may.`,
		Example: "  gpulab login lab.example\n  gpulab login https://10.0.0.5 --scope full --days 7\n" +
			"  gpulab login lab.example --fingerprint 3F:0A:… --no-browser",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			address := ""
			if len(args) == 1 {
				address = args[0]
			}
			return a.login(c, address, o)
		},
	}
	c.Flags().StringVar(&o.scope, "scope", "launch", "what the token may do: read, launch or full")
	c.Flags().IntVar(&o.days, "days", 30, "how many days it lasts: 7, 30, 90 or 365")
	c.Flags().StringVar(&o.fingerprint, "fingerprint", "", "SHA-256 of the lab's authority, instead of being asked")
	c.Flags().BoolVar(&o.noBrowser, "no-browser", false, "print the address only; it may be opened on any device")
	jsonFlag(c, &o.asJSON)
	complete(c, "scope", "read", "launch", "full")
	complete(c, "days", "7", "30", "90", "365")
	return c
}

func complete(c *cobra.Command, flag string, values ...string) {
	if err := c.RegisterFlagCompletionFunc(flag,
		cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // no such flag: a mistake in this program
	}
}

func (a *App) login(c *cobra.Command, address string, o loginOptions) error {
	path, err := a.path()
	if err != nil {
		return err
	}
	before, beforeErr := readLogin(path)
	if address == "" {
		if beforeErr != nil {
			return fail(ExitUsage, "say which lab: `gpulab login lab.example`; its address is the one in your browser")
		}
		address = before.Server
	}
	server, err := serverAddress(address)
	if err != nil {
		return err
	}
	known := before
	if before.Server != server {
		known = Login{}
	}
	ca, name, err := a.trust(c, server, known.CA, o)
	if err != nil {
		return err
	}
	login := Login{Server: server, Lab: name, CA: string(ca)}
	session, err := NewSession(login)
	if err != nil {
		return err
	}
	answer, err := a.confirm(c, session, o)
	if err != nil {
		return err
	}
	login.Token, login.Scope, login.Handle, login.Expires = answer.Token, answer.Scope, answer.Handle, answer.Expires
	if err := writeLogin(path, login); err != nil {
		return err
	}
	if beforeErr == nil {
		revokeOld(c.Context(), before)
	}
	if o.asJSON {
		return printJSON(c.OutOrStdout(), map[string]any{
			"server": login.Server, "lab": login.Lab, "handle": login.Handle, "scope": login.Scope, "expires": login.Expires,
		})
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "Signed in to %s as %s until %s. Next: `gpulab launch`, or `gpulab ps`.\n",
		plain(login.Lab), plain(login.Handle), login.Expires.Local().Format("2 January 2006"))
	return err
}

// revokeOld ends the token of an earlier sign-in, which nothing uses any more. One that cannot be ended now ends by
// itself.
func revokeOld(ctx context.Context, old Login) {
	if s, err := NewSession(old); err == nil {
		_ = s.Do(ctx, http.MethodDelete, "/me/token", nil, nil)
	}
}

// trust finds out whom to trust for a lab: what was pinned before, the system's authorities, or the lab's own once the
// person has compared its fingerprint.
func (a *App) trust(c *cobra.Command, server, pinned string, o loginOptions) (ca []byte, name string, err error) {
	if pinned != "" && (o.fingerprint == "" || sameFingerprint(o.fingerprint, fingerprint([]byte(pinned)))) {
		s, err := NewSession(Login{Server: server, CA: pinned})
		if err != nil {
			return nil, "", err
		}
		var found lab
		err = s.Get(c.Context(), "/lab", &found)
		var stranger *strangerError
		if !errors.As(err, &stranger) {
			return []byte(pinned), found.Name, err
		}
		fmt.Fprintf(c.ErrOrStderr(), "CAREFUL: %s shows another certificate authority than the one you trusted before.\n"+
			"Somebody may be listening in. Go on only if an admin of the lab tells you that it is new.\n", server)
	}
	found, authority, err := meet(c.Context(), server)
	if err != nil || authority == nil {
		return nil, found.Name, err
	}
	shown := fingerprint(authority)
	if o.fingerprint == "" {
		return authority, found.Name, askTrust(c, server, shown)
	}
	if !sameFingerprint(o.fingerprint, shown) {
		return nil, "", fail(ExitNotReached, "%s shows the fingerprint %s, which is not the one that you gave; do not "+
			"sign in, and ask an admin of the lab", server, shown)
	}
	return authority, found.Name, nil
}

// askTrust lets the person compare a fingerprint. Without a terminal nobody could.
func askTrust(c *cobra.Command, server, shown string) error {
	in, ok := c.InOrStdin().(*os.File)
	if ok && !term.IsTerminal(int(in.Fd())) {
		return fail(ExitUsage, "%s signs its certificate itself, and nobody can compare the fingerprint here; give it "+
			"with --fingerprint, as an admin of the lab or the page %[1]s/trust tells it", server)
	}
	fmt.Fprintf(c.ErrOrStderr(), `
%s signs its certificate itself, so nothing vouches for it yet. The SHA-256
fingerprint of its authority is

  %s
  %s

Compare it with the one that an admin of the lab tells you (gpulab ca --fingerprint
on the head machine), or with the page %[1]s/trust in a browser that trusts the lab.
Is it the same? Type yes to trust it from now on: `, server, shown[:48], shown[48:])
	answer, err := bufio.NewReader(c.InOrStdin()).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !strings.EqualFold(strings.TrimSpace(answer), "yes") {
		return fail(ExitNotReached, "the lab was not trusted, and you are not signed in")
	}
	return nil
}

// confirm gets a token: the person confirms in the browser, this computer asks until they have.
func (a *App) confirm(c *cobra.Command, s *Session, o loginOptions) (deviceAnswer, error) {
	var start deviceStart
	err := s.Do(c.Context(), http.MethodPost, "/device",
		map[string]any{"client": thisComputer(), "scope": o.scope, "days": o.days}, &start)
	if err != nil {
		return deviceAnswer{}, err
	}
	page := s.Login.Server + "/device?code=" + url.QueryEscape(start.UserCode)
	out := c.ErrOrStderr()
	fmt.Fprintf(out, "Confirm in your browser that it is you:\n\n  %s\n\nThe page must show the code  %s\n\n", page,
		plain(start.UserCode))
	if !o.noBrowser && !remoteTerminal() {
		if err := a.open(page); err != nil {
			fmt.Fprintln(out, "No browser could be opened here: open the address yourself, on any device.")
		}
	}
	expires := time.Duration(start.ExpiresIn) * time.Second
	fmt.Fprintf(out, "Waiting for up to %d minutes …\n", int(expires.Minutes()))
	return pollDevice(c.Context(), s, start, expires)
}

// pollDevice asks until the person has decided or the time is over.
func pollDevice(ctx context.Context, s *Session, start deviceStart, within time.Duration) (deviceAnswer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, within, errTooLate)
	defer cancel()
	pause := time.Duration(max(start.Interval, 1)) * time.Second
	for {
		var answer deviceAnswer
		err := s.once(ctx, http.MethodPost, "/device/token", map[string]string{"deviceCode": start.DeviceCode}, &answer)
		var refused *Problem
		switch {
		case err == nil && answer.State == "approved":
			return answer, nil
		case errors.As(err, &refused) && refused.Status == http.StatusTooManyRequests:
			pause += max(refused.RetryAfter, time.Second)
		case errors.As(err, &refused) && refused.Status < http.StatusInternalServerError:
			return deviceAnswer{}, fail(ExitSignedOut, "%w", err)
		}
		// Otherwise nobody has decided, or there was no answer: a network that comes and goes must not cost the sign-in.
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errTooLate) {
				return deviceAnswer{}, fail(ExitSignedOut, "nobody confirmed in time; run `gpulab login` again")
			}
			return deviceAnswer{}, fail(ExitFailure, "interrupted; you are not signed in")
		case <-time.After(pause):
		}
	}
}

var errTooLate = errors.New("too late")

// thisComputer is what the page of the lab calls this program.
func thisComputer() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "a computer without a name"
	}
	return clip(plain(fmt.Sprintf("%s (%s)", host,
		map[string]string{"darwin": "macOS", "windows": "Windows", "linux": "Linux"}[runtime.GOOS])), 59)
}

// remoteTerminal reports whether a browser opened here would appear where nobody sits.
func remoteTerminal() bool {
	return os.Getenv("SSH_CONNECTION") != "" || runtime.GOOS == "linux" && os.Getenv("DISPLAY") == "" &&
		os.Getenv("WAYLAND_DISPLAY") == "" && os.Getenv("WSL_DISTRO_NAME") == ""
}

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"rsc.io/qr"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
)

func newTailnet(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "tailnet", Short: "Reach the lab from anywhere over a tailnet: up, down, status, funnel, logout",
		Long: `gpulab joins a tailnet by itself, of Tailscale or of a control server of your own
(Headscale): no other program is installed, and the machine's own network stays as it
is. People who are in the tailnet then open the lab from wherever they are. Nothing is
sent to anybody before it is turned on.`,
		Example: "  sudo gpulab tailnet up\n  sudo gpulab tailnet status\n  sudo gpulab tailnet down",
	}
	c.AddCommand(newTailnetUp(a), newTailnetDown(a), newTailnetStatus(a), newTailnetFunnel(a), newTailnetLogout(a))
	return c
}

func newTailnetUp(a *app) *cobra.Command {
	var r ctl.TailnetRequest
	var keyFile string
	var asJSON bool
	var wait time.Duration
	c := &cobra.Command{
		Use: "up", Short: "Join a tailnet, or turn it on again",
		Long: `Join a tailnet, and stay in it over restarts. Without a key it shows an address, and
its QR code: whoever of the tailnet opens it and signs in lets the lab in. A key lets it
in at once; it is read from a file or from standard input ("-"), used once, and kept
nowhere. Run again, it changes nothing unless something else is asked for.`,
		Example: `  sudo gpulab tailnet up
  sudo gpulab tailnet up --auth-key-file /root/tailnet.key
  sudo gpulab tailnet up --login-server https://headscale.example.org --hostname vision-lab`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			if keyFile != "" {
				key, err := readAuthKey(keyFile, c.InOrStdin())
				if err != nil {
					return err
				}
				r.AuthKey = key
			}
			now, err := a.client().TailnetUp(c.Context(), r)
			if err != nil {
				return err
			}
			now, err = a.followTailnet(c.Context(), c.ErrOrStderr(), now, wait)
			if err != nil {
				return err
			}
			if err := printTailnet(c.OutOrStdout(), now, asJSON); err != nil {
				return err
			}
			if now.State != ctl.TailnetUp {
				return fail(exitNotReady, "the lab is not in the tailnet yet; `gpulab tailnet status` says how it goes on")
			}
			return nil
		},
	}
	c.Flags().StringVar(&keyFile, "auth-key-file", "", `a file that holds a key of the tailnet, "-" for standard input`)
	c.Flags().StringVar(&r.LoginServer, "login-server", "", "control server of your own, such as "+
		"https://headscale.example.org; Tailscale's without it")
	c.Flags().StringVar(&r.Hostname, "hostname", "", "what the lab is called in the tailnet (gpulab)")
	c.Flags().DurationVar(&wait, "wait", 10*time.Minute, "how long to wait until the lab is in; 0 does not wait")
	if err := c.MarkFlagFilename("auth-key-file"); err != nil {
		panic(err) // no such flag
	}
	jsonFlag(c, &asJSON)
	return c
}

// readAuthKey reads a key from where no other user of the machine sees it, as they see arguments.
func readAuthKey(path string, stdin io.Reader) (string, error) {
	from := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", fail(exitUsage, "the key cannot be read: %w", err)
		}
		defer f.Close()
		from = f
	}
	data, err := io.ReadAll(io.LimitReader(from, 8<<10))
	if err != nil {
		return "", fmt.Errorf("the key cannot be read: %w", err)
	}
	key := strings.TrimSpace(string(data))
	if key == "" {
		return "", fail(exitUsage, "there is no key in %s; make one on the page of the tailnet, or leave --auth-key-file "+
			"out to sign in by an address", path)
	}
	return key, nil
}

// followTailnet waits until the lab is in, and shows where somebody has to let it in.
func (a *app) followTailnet(ctx context.Context, out io.Writer, now ctl.Tailnet,
	patience time.Duration) (ctl.Tailnet, error) {
	shown, said := "", ""
	for end := time.Now().Add(patience); ; {
		if now.LoginURL != "" && now.LoginURL != shown {
			shown = now.LoginURL
			fmt.Fprintf(out, "Open this address and sign in to the tailnet; that lets the lab in:\n\n  %s\n\n%s\n", now.LoginURL,
				terminalQR(now.LoginURL))
		} else if now.LoginURL == "" && now.State != ctl.TailnetUp && now.Detail != said {
			said = now.Detail
			fmt.Fprintln(out, "· "+now.Detail)
		}
		if now.State == ctl.TailnetUp || now.State == ctl.TailnetOff || now.State == ctl.TailnetFailed ||
			time.Now().After(end) {
			return now, nil
		}
		if !sleep(ctx, 300*time.Millisecond) {
			return now, fail(exitFailure, "interrupted; gpulab goes on trying. `gpulab tailnet status` says how it stands, "+
				"`gpulab tailnet down` ends it")
		}
		var err error
		if now, err = a.client().Tailnet(ctx); err != nil {
			return now, err
		}
	}
}

// terminalQR is a QR code in half blocks, dark on light whatever the terminal's colours.
func terminalQR(text string) string {
	code, err := qr.Encode(text, qr.L)
	if err != nil {
		return ""
	}
	const quiet = 2
	var b strings.Builder
	for y := -quiet; y < code.Size+quiet; y += 2 {
		b.WriteString("  \x1b[30;47m")
		for x := -quiet; x < code.Size+quiet; x++ {
			b.WriteString([]string{" ", "▀", "▄", "█"}[bit(code.Black(x, y))+2*bit(code.Black(x, y+1))])
		}
		b.WriteString("\x1b[0m\n")
	}
	return b.String()
}

func bit(is bool) int {
	if is {
		return 1
	}
	return 0
}

func printTailnet(w io.Writer, now ctl.Tailnet, asJSON bool) error {
	if asJSON {
		return printJSON(w, now)
	}
	fmt.Fprintln(w, now.Detail)
	if len(now.Addresses) > 0 {
		fmt.Fprintf(w, "  addresses    %s\n", strings.Join(now.Addresses, ", "))
	}
	if now.LoginServer != "" {
		fmt.Fprintf(w, "  control      %s\n", now.LoginServer)
	}
	if now.Expires != nil {
		fmt.Fprintf(w, "  key until    %s\n", now.Expires.Local().Format("2006-01-02 15:04"))
	}
	if now.State == ctl.TailnetUp {
		fmt.Fprintf(w, "  sign-in      %s\n", now.SignIn)
	}
	if now.Funnel != "" {
		word := now.Funnel
		if word == ctl.FunnelOff {
			word = "closed"
		}
		fmt.Fprintf(w, "  internet     %s\n", word)
	}
	if now.NextStep != "" {
		fmt.Fprintf(w, "Next: %s\n", now.NextStep)
	}
	return nil
}

func newTailnetStatus(a *app) *cobra.Command {
	return tailnetCommand(a, "status", "How the lab stands with its tailnet",
		func(ctx context.Context) (ctl.Tailnet, error) { return a.client().Tailnet(ctx) })
}

func newTailnetDown(a *app) *cobra.Command {
	return tailnetCommand(a, "down", "Turn it off; the lab stays known to the tailnet",
		func(ctx context.Context) (ctl.Tailnet, error) { return a.client().TailnetDown(ctx) })
}

func newTailnetLogout(a *app) *cobra.Command {
	return tailnetCommand(a, "logout", "Leave the tailnet; people who came over it come as before",
		func(ctx context.Context) (ctl.Tailnet, error) { return a.client().TailnetLogout(ctx) })
}

func newTailnetFunnel(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "funnel", Short: "Close the lab to the public internet, where somebody has opened it",
		Long: `Funnel opens the lab to everybody on the internet, without the tailnet. It is off. An
admin opens it on the page Status → Tailnet, where they are asked twice and for their
password; from the command line it can be closed.`,
		Example: "  sudo gpulab tailnet status\n  sudo gpulab tailnet funnel off",
	}
	c.AddCommand(tailnetCommand(a, "funnel off", "Close the lab to the public internet; the tailnet stays on",
		func(ctx context.Context) (ctl.Tailnet, error) { return a.client().TailnetFunnelOff(ctx) }))
	return c
}

// tailnetCommand is a command below tailnet; the last word of use is its own.
func tailnetCommand(a *app, use, short string, do func(ctx context.Context) (ctl.Tailnet, error)) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: use[strings.LastIndexByte(use, ' ')+1:], Short: short,
		Example: fmt.Sprintf("  sudo gpulab tailnet %s\n  sudo gpulab tailnet %[1]s --json", use), Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			now, err := do(c.Context())
			if err != nil {
				return err
			}
			return printTailnet(c.OutOrStdout(), now, asJSON)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

// forgetTailnet leaves the tailnet before the lab is taken off the machine. Where that cannot be told to the control
// server, it says what is left to do, and the reset goes on.
func (a *app) forgetTailnet(ctx context.Context, out io.Writer, cfg config.Config, step func(string)) {
	if _, err := os.Stat(tailnetDir(cfg)); err != nil {
		return
	}
	step("leaving the tailnet")
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	left, err := a.client().TailnetLogout(ctx)
	switch {
	case err != nil:
		fmt.Fprintln(out, "  gpulab could not be asked to; delete this machine in the tailnet's own list.")
	case left.NextStep != "":
		fmt.Fprintf(out, "  %s %s\n", left.Detail, left.NextStep)
	}
}

package dev.gantry.interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.Permission;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.commons.cli.Option;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * Runs mqadmin's commands one after another in one virtual machine, exactly as its {@code main} does, and returns
 * what each printed. A virtual machine for each command would cost a second of processor time apiece.
 *
 * <p>Each line of the input is one JSON object and is answered by one line: {@code {"list": true}} by all subcommands
 * with their options; {@code {"arguments": ["topicList", "-n", ...], "seconds_max": 60}} by {@code out}, {@code error},
 * {@code exit} (null when the command just returned), {@code is_cut}: an endless command is interrupted, and
 * {@code is_stuck}: it still runs some time after that.
 * With {@code access_key} and {@code secret_key} the requests are signed.
 */
public final class AdminTool {
    private static final long CUT_SECONDS_MAX = 30;

    private AdminTool() {
    }

    /** The list of all commands, which mqadmin keeps to itself and fills at each start. */
    private static final class Startup extends MQAdminStartup {
        static List<SubCommand> commands() {
            SUB_COMMANDS.clear();
            initCommand();
            return SUB_COMMANDS;
        }

        static void run(List<String> arguments, RPCHook signer) {
            SUB_COMMANDS.clear();
            main0(arguments.toArray(new String[0]), signer);
        }
    }

    /** The error that replaces a command's {@code System.exit}: mqadmin catches exceptions, but no errors. */
    private static final class Exit extends Error {
        private final int status;

        private Exit(int status) {
            this.status = status;
        }
    }

    @SuppressWarnings("removal")
    private static final class NoExit extends SecurityManager {
        private volatile boolean isOver;

        @Override
        public void checkExit(int status) {
            if (!isOver) {
                throw new Exit(status);
            }
        }

        @Override
        public void checkPermission(Permission permission) {
        }

        @Override
        public void checkPermission(Permission permission, Object context) {
        }
    }

    @SuppressWarnings("removal")
    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.US_ASCII);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        NoExit guard = new NoExit();
        System.setSecurityManager(guard);
        Startup.commands(); // log libraries introduce themselves now, and not within the first command's output
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject asked = JSON.parseObject(line);
            Map<String, Object> answer = asked.getBooleanValue("list")
                ? Map.of("commands", commands())
                : run(asked.getList("arguments", String.class), asked.getLongValue("seconds_max"), signer(asked));
            answers.println(Json.line(answer));
        }
        guard.isOver = true;
        System.exit(0);
    }

    private static List<Map<String, Object>> commands() {
        List<Map<String, Object>> found = new ArrayList<>();
        for (SubCommand command : Startup.commands()) {
            Map<String, String> options = new LinkedHashMap<>();
            for (Option option : command.buildCommandlineOptions(new Options()).getOptions()) {
                options.put(option.getOpt(), option.getLongOpt());
            }
            Map<String, Object> described = new LinkedHashMap<>();
            described.put("name", command.commandName());
            described.put("options", options);
            found.add(described);
        }
        return found;
    }

    private static Map<String, Object> run(List<String> arguments, long secondsMax, RPCHook signer) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream error = new ByteArrayOutputStream();
        PrintStream oldOut = System.out;
        PrintStream oldError = System.err;
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(error, true, StandardCharsets.UTF_8));
        System.clearProperty(MixAll.NAMESRV_ADDR_PROPERTY);
        Integer[] exit = new Integer[1];
        Thread thread = new Thread(() -> {
            try {
                Startup.run(arguments, signer);
            } catch (Exit ended) {
                exit[0] = ended.status;
            } catch (Throwable thrown) {
                thrown.printStackTrace();
            }
        }, "mqadmin");
        thread.start();
        boolean isCut = !ends(thread, secondsMax);
        if (isCut) {
            thread.interrupt();
            ends(thread, CUT_SECONDS_MAX);
        }
        System.setOut(oldOut);
        System.setErr(oldError);
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("out", out.toString(StandardCharsets.UTF_8));
        answer.put("error", error.toString(StandardCharsets.UTF_8));
        answer.put("exit", exit[0]);
        answer.put("is_cut", isCut);
        answer.put("is_stuck", thread.isAlive());
        return answer;
    }

    /** Null makes mqadmin look for an account in its home, where there is none. */
    private static RPCHook signer(JSONObject asked) {
        String accessKey = asked.getString("access_key");
        return accessKey == null ? null
            : new AclClientRPCHook(new SessionCredentials(accessKey, asked.getString("secret_key")));
    }

    private static boolean ends(Thread thread, long secondsMax) throws InterruptedException {
        thread.join(TimeUnit.SECONDS.toMillis(secondsMax));
        return !thread.isAlive();
    }
}

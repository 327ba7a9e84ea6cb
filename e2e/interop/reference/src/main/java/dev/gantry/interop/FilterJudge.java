package dev.gantry.interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;

/**
 * Evaluates filters on messages with Apache's own evaluator, the reference for Gantry's.
 *
 * <p>Each line of the input is one JSON object: {@code {"expression": "a > 1", "messages": [{"a": "2"}, {}]}}. Each is
 * answered by one line: {@code refused} if the expression is invalid, else one letter for each message: T for true, F
 * for false, U for null, X when the evaluator throws, ? for any other value.
 */
public final class FilterJudge {
    private FilterJudge() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(judge(JSON.parseObject(line)));
        }
        out.flush();
    }

    private static String judge(JSONObject asked) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get(ExpressionType.SQL92).compile(asked.getString("expression"));
        } catch (MQFilterException refused) {
            return "refused";
        }
        StringBuilder verdicts = new StringBuilder();
        JSONArray messages = asked.getJSONArray("messages");
        for (int index = 0; index < messages.size(); index++) {
            Map<String, String> properties = new HashMap<>();
            messages.getJSONObject(index).forEach((name, value) -> properties.put(name, (String) value));
            verdicts.append(verdict(expression, properties));
        }
        return verdicts.toString();
    }

    private static char verdict(Expression expression, Map<String, String> properties) {
        Object value;
        try {
            value = expression.evaluate(new MessageEvaluationContext(properties));
        } catch (Exception fault) {
            return 'X';
        }
        return value == null ? 'U' : value == Boolean.TRUE ? 'T' : value == Boolean.FALSE ? 'F' : '?';
    }
}

package replayfilter;

import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.function.Predicate;
import org.apache.kafka.clients.producer.ProducerConfig;

/** The settings of a stamping producer: defaults that keep the order and every record, and rules for the rest. */
final class StampingSettings {
    private static final class Rule {
        final Predicate<String> allows; // gets the value in lower case
        final String reason;

        Rule(Predicate<String> allows, String reason) {
            this.allows = allows;
            this.reason = reason;
        }
    }

    private static final Map<String, Object> DEFAULTS = Map.of(
            ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG, true,
            ProducerConfig.ACKS_CONFIG, "all",
            ProducerConfig.LINGER_MS_CONFIG, 20,
            ProducerConfig.DELIVERY_TIMEOUT_MS_CONFIG, Integer.MAX_VALUE);

    private static final Map<String, Rule> RULES = Map.of(
            ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG,
            new Rule("true"::equals, "without it a retry inside the client can change the order; leave it out"),
            ProducerConfig.ACKS_CONFIG,
            new Rule(
                    value -> value.equals("all") || value.equals("-1"),
                    "below 'all' a record can be lost after later ones were written; leave it out"),
            ProducerConfig.DELIVERY_TIMEOUT_MS_CONFIG,
            new Rule(
                    String.valueOf(Integer.MAX_VALUE)::equals,
                    "a short outage would end the job; leave it out, and the producer waits"),
            ProducerConfig.TRANSACTIONAL_ID_CONFIG,
            new Rule(value -> false, "for transactions use Kafka's producer, with Stamp and StampPartitioner"),
            ProducerConfig.PARTITIONER_CLASS_CONFIG,
            new Rule(value -> false, "the partition follows from the stamp; leave it out"));

    private StampingSettings() {}

    static Map<String, Object> of(Map<String, ?> settings) {
        settings.forEach((name, value) -> {
            Rule rule = RULES.get(name);
            if (rule != null && !rule.allows.test(String.valueOf(value).toLowerCase(Locale.ROOT))) {
                throw new StampException(
                        "setting " + name + " = " + value + " of a stamping producer: " + rule.reason);
            }
        });
        Map<String, Object> chosen = new HashMap<>(DEFAULTS);
        chosen.putAll(settings);
        return chosen;
    }
}

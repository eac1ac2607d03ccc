"""Word tables of the quickstart corpus; the fields of each table are named above it."""

# Class -> entries "english[/irregular plural]|chinese|measure word[|bare english]".
# The bare form ("coffee") is what remains without the container or pair ("cup of coffee").
NOUNS: dict[str, str] = {
    "reading": """
        book|书|本, dictionary|词典|本, magazine|杂志|本, newspaper|报纸|份, novel|小说|本,
        comic book|漫画书|本, guidebook|旅游指南|本, textbook|课本|本, cookbook|食谱|本,
        history book|历史书|本""",
    "writing": """
        letter|信|封, email|电子邮件|封, postcard|明信片|张, report|报告|份, article|文章|篇,
        story|故事|个, poem|诗|首, birthday card|生日卡|张""",
    "show": """
        movie|电影|部, play|话剧|场, concert|音乐会|场, documentary|纪录片|部, cartoon|动画片|部,
        football match|足球比赛|场, tennis match|网球比赛|场""",
    "clothes": """
        shirt|衬衫|件, coat|大衣|件, sweater|毛衣|件, jacket|夹克|件,
        suit|西装|套, raincoat|雨衣|件, vest|背心|件, swimsuit|泳衣|件""",
    "womenswear": "skirt|裙子|条, dress|连衣裙|条",
    "pair": """
        pair of shoes|鞋子|双|shoes, pair of socks|袜子|双|socks, pair of boots|靴子|双|boots,
        pair of gloves|手套|副|gloves, pair of trousers|裤子|条|trousers,
        pair of jeans|牛仔裤|条|jeans, pair of sneakers|运动鞋|双|sneakers,
        pair of slippers|拖鞋|双|slippers""",
    "accessory": """
        hat|帽子|顶, scarf/scarves|围巾|条, watch|手表|块, necklace|项链|条, ring|戒指|枚,
        tie|领带|条, helmet|头盔|个, belt|腰带|条""",
    "gadget": """
        phone|手机|部, camera|相机|台, tablet|平板电脑|台, laptop|笔记本电脑|台,
        charger|充电器|个, keyboard|键盘|个, radio|收音机|台""",
    "appliance": """
        television|电视机|台, air conditioner|空调|台, refrigerator|冰箱|台,
        washing machine|洗衣机|台, microwave|微波炉|台, fan|风扇|台, hair dryer|吹风机|个,
        kettle|水壶|个, printer|打印机|台, vacuum cleaner|吸尘器|台""",
    "furniture": """
        table|桌子|张, chair|椅子|把, bed|床|张, sofa|沙发|张, bookshelf/bookshelves|书架|个,
        desk|书桌|张, wardrobe|衣柜|个, cabinet|柜子|个""",
    "household": """
        umbrella|雨伞|把, knife/knives|刀|把, cup|杯子|个, plate|盘子|个, bowl|碗|个,
        spoon|勺子|把, fork|叉子|把, towel|毛巾|条, pillow|枕头|个, blanket|毯子|条,
        toothbrush|牙刷|把, comb|梳子|把, basket|篮子|个, box|盒子|个, vase|花瓶|个,
        mirror|镜子|面, lamp|台灯|盏, alarm clock|闹钟|个""",
    "stationery": """
        pen|钢笔|支, pencil|铅笔|支, notebook|笔记本|个, ruler|尺子|把, eraser|橡皮|块,
        calculator|计算器|个, stamp|邮票|张, envelope|信封|个, map|地图|张, calendar|日历|本""",
    "bag": "wallet|钱包|个, suitcase|行李箱|个, backpack|背包|个, handbag|手提包|个",
    "document": """
        key|钥匙|把, passport|护照|本, credit card|信用卡|张, ID card|身份证|张,
        driver's license|驾照|本""",
    "toy": """
        doll|洋娃娃|个, kite|风筝|个, balloon|气球|个, football|足球|个, basketball|篮球|个,
        guitar|吉他|把, violin|小提琴|把, skateboard|滑板|个, painting|画|幅, toy car|玩具车|辆,
        tennis racket|网球拍|个""",
    "ticket": """
        train ticket|火车票|张, movie ticket|电影票|张, concert ticket|音乐会门票|张,
        plane ticket|机票|张, museum ticket|博物馆门票|张""",
    "vehicle": """
        car|汽车|辆, bicycle|自行车|辆, motorcycle|摩托车|辆""",
    "fruit": """
        apple|苹果|个, banana|香蕉|根, orange|橙子|个, pear|梨|个, peach|桃子|个,
        mango/mangoes|芒果|个, tomato/tomatoes|西红柿|个, egg|鸡蛋|个, pineapple|菠萝|个""",
    "grocery": """
        lemon|柠檬|个, potato/potatoes|土豆|个, watermelon|西瓜|个, cucumber|黄瓜|根,
        carrot|胡萝卜|根, onion|洋葱|个""",
    "snack": """
        sandwich|三明治|个, hamburger|汉堡包|个, steamed bun|包子|个, pizza|比萨饼|个,
        cookie|饼干|块, hot dog|热狗|个""",
    "dish": """
        bowl of noodles|面条|碗|noodles, bowl of rice|米饭|碗|rice, bowl of soup|汤|碗|soup,
        plate of dumplings|饺子|盘|dumplings, plate of fried rice|炒饭|盘|fried rice,
        bowl of porridge|粥|碗|porridge, plate of beef|牛肉|盘|beef,
        plate of vegetables|蔬菜|盘|vegetables, plate of chicken|鸡肉|盘|chicken,
        plate of tofu|豆腐|盘|tofu, plate of fish|鱼|盘|fish, bowl of wontons|馄饨|碗|wontons,
        plate of mushrooms|蘑菇|盘|mushrooms, plate of spring rolls|春卷|盘|spring rolls""",
    "sweet": """
        piece of bread|面包|块|bread, piece of cake|蛋糕|块|cake,
        piece of chocolate|巧克力|块|chocolate, piece of cheese|奶酪|块|cheese""",
    "drink": """
        cup of coffee|咖啡|杯|coffee, cup of tea|茶|杯|tea, glass of water|水|杯|water,
        glass of milk|牛奶|杯|milk, bottle of beer|啤酒|瓶|beer, glass of red wine|红酒|杯|red wine,
        glass of orange juice|橙汁|杯|orange juice, bottle of mineral water|矿泉水|瓶|mineral water,
        bottle of cola|可乐|瓶|cola, cup of green tea|绿茶|杯|green tea,
        cup of black tea|红茶|杯|black tea, glass of soy milk|豆浆|杯|soy milk,
        glass of apple juice|苹果汁|杯|apple juice, cup of milk tea|奶茶|杯|milk tea""",
    "outer": """
        umbrella|雨伞|把, raincoat|雨衣|件, coat|大衣|件, hat|帽子|顶, scarf/scarves|围巾|条,
        sweater|毛衣|件, jacket|夹克|件""",
    "mail": """
        letter|信|封, postcard|明信片|张, birthday card|生日卡|张, package|包裹|个,
        invitation|请柬|张""",
    "note": "letter|信|封, email|电子邮件|封, postcard|明信片|张, birthday card|生日卡|张",
    "animal": """
        dog|狗|只, cat|猫|只, panda|熊猫|只, tiger|老虎|只, monkey|猴子|只, bird|鸟|只,
        horse|马|匹, elephant|大象|头, rabbit|兔子|只, sheep/sheep|羊|只, cow|牛|头,
        duck|鸭子|只, snake|蛇|条, lion|狮子|头, bear|熊|头, penguin|企鹅|只""",
    "job": """
        doctor|医生|个, nurse|护士|个, teacher|老师|个, lawyer|律师|个, engineer|工程师|个,
        police officer|警察|个, driver|司机|个, cook|厨师|个, waiter|服务员|个, journalist|记者|个,
        writer|作家|个, singer|歌手|个, actor|演员|个, painter|画家|个, farmer|农民|个,
        accountant|会计|个, translator|翻译|个, tour guide|导游|个, pilot|飞行员|个,
        dentist|牙医|个, scientist|科学家|个, photographer|摄影师|个,
        secretary|秘书|个, manager|经理|个, programmer|程序员|个, architect|建筑师|个,
        firefighter|消防员|个, athlete|运动员|个, musician|音乐家|个, hairdresser|理发师|个""",
    "office_job": """
        accountant|会计|个, translator|翻译|个, secretary|秘书|个, manager|经理|个,
        programmer|程序员|个, driver|司机|个, lawyer|律师|个, receptionist|前台|个,
        cleaner|清洁工|个, security guard|保安|个, cook|厨师|个""",
    "room_thing": """
        television|电视机|台, air conditioner|空调|台, refrigerator|冰箱|台, lamp|台灯|盏,
        fan|风扇|台, hair dryer|吹风机|个, kettle|水壶|个, microwave|微波炉|台, alarm clock|闹钟|个,
        radio|收音机|台""",
    "room": """
        single room|单人间|个, double room|双人间|个, family room|家庭房|个, suite|套房|个,
        quiet room|安静的房间|个, room with a sea view|海景房|个, cheap room|便宜的房间|个,
        large room|大房间|个""",
}

# Class -> entries "english|chinese|preposition|measure word".
PLACES: dict[str, str] = {
    "shop": """
        supermarket|超市|at|家, market|市场|at|个, department store|百货商店|at|家,
        shopping mall|商场|at|个, convenience store|便利店|at|家""",
    "special_shop": """
        bookstore|书店|at|家, bakery|面包店|at|家, pharmacy|药店|at|家, clothing store|服装店|at|家,
        flower shop|花店|at|家, shoe store|鞋店|at|家, toy store|玩具店|at|家""",
    "eatery": """
        restaurant|饭馆|at|家, coffee shop|咖啡馆|at|家, bar|酒吧|at|家, tea house|茶馆|at|家,
        cafeteria|食堂|in|个, fast food restaurant|快餐店|at|家""",
    "quiet": """
        library|图书馆|in|个, classroom|教室|in|个, office|办公室|in|个, garden|花园|in|个""",
    "workshop": "garden|花园|in|个, office|办公室|in|个",
    "outdoor": """
        park|公园|in|个, square|广场|in|个, stadium|体育场|at|个, playground|操场|on|个""",
    "sight": """
        museum|博物馆|at|个, temple|寺庙|at|座, zoo|动物园|at|个, art gallery|美术馆|at|个,
        church|教堂|at|座, palace|宫殿|at|座, botanical garden|植物园|at|个""",
    "work": """
        bank|银行|at|家, hospital|医院|at|家, factory|工厂|at|家, hotel|酒店|at|家,
        travel agency|旅行社|at|家, law firm|律师事务所|at|家, newspaper office|报社|at|家""",
    "academy": """
        university|大学|at|所, middle school|中学|at|所, high school|高中|at|所,
        college|学院|at|所""",
    "station": """
        airport|机场|at|个, train station|火车站|at|个, subway station|地铁站|at|个,
        bus stop|公交车站|at|个, ticket office|售票处|at|个""",
    "service": """
        post office|邮局|at|个, police station|警察局|at|个, embassy|大使馆|at|个,
        cinema|电影院|at|家, gym|健身房|at|家, swimming pool|游泳池|at|个,
        gas station|加油站|at|个, parking lot|停车场|in|个, hair salon|理发店|at|家,
        clinic|诊所|at|家, theater|剧院|at|家""",
}

# Class -> entries "base past participle ing [third person]|chinese|object classes|place classes";
# words of one multi-word form are joined by "_".
VERBS: dict[str, str] = {
    "vt": """
        buy bought bought buying|买|goods|;
        read read read reading|看|reading|;
        write wrote written writing|写|writing|;
        eat ate eaten eating|吃|food|;
        drink drank drunk drinking|喝|drink|;
        order ordered ordered ordering|点|dish drink|;
        sell sold sold selling|卖|goods|;
        borrow borrowed borrowed borrowing|借|reading tool|;
        receive received received receiving|收到|note|;
        draw drew drawn drawing|画|animal|;
        choose chose chosen choosing|选|goods|;
        see saw seen seeing|看到|animal|;
        repair repaired repaired repairing|修|machine|""",
    "vdo": """
        read read read reading|看|reading|quiet;
        write wrote written writing|写|writing|quiet;
        eat ate eaten eating|吃|food|eatery;
        drink drank drunk drinking|喝|drink|eatery;
        choose chose chosen choosing|选|goods|shop;
        draw drew drawn drawing|画|animal|quiet;
        repair repaired repaired repairing|修|machine|workshop""",
    "vgoods": """
        buy bought bought buying|买|goods|;
        sell sold sold selling|卖|goods|;
        borrow borrowed borrowed borrowing|借|reading tool|;
        repair repaired repaired repairing|修|machine|;
        return returned returned returning|还|reading tool|""",
    "vget": """
        buy bought bought buying|买|shopping|; sell sold sold selling|卖|shopping|;
        write wrote written writing|写|writing|; draw drew drawn drawing|画|animal|;
        eat ate eaten eating|吃|fruit snack|; drink drank drunk drinking|喝|drink|""",
    "vtrade": "buy bought bought buying|买|goods|; sell sold sold selling|卖|goods|",
    "vread": """
        read read read reading|看|reading|; borrow borrowed borrowed borrowing|借|reading|;
        buy bought bought buying|买|reading|""",
    "vsort": """
        eat ate eaten eating|吃|food|; drink drank drunk drinking|喝|drink|""",
    "manner": """
        run ran run running|跑|speed|; swim swam swum swimming|游|speed|;
        walk walked walked walking|走|speed|; drive drove driven driving|开车开|speed|;
        eat ate eaten eating|吃|speed|; write wrote written writing|写|speed skill clarity|;
        sing sang sung singing|唱|skill clarity|; dance danced danced dancing|跳|skill|;
        cook cooked cooked cooking|做饭做|speed skill|;
        speak spoke spoken speaking|说话说|speed clarity|""",
}

# Class -> entries "base past ing|chinese|place classes" of activities without open object.
ACTIVITIES: dict[str, str] = {
    "sport": """
        play_football played_football playing_football|踢足球|outdoor;
        play_basketball played_basketball playing_basketball|打篮球|outdoor;
        play_tennis played_tennis playing_tennis|打网球|outdoor;
        play_badminton played_badminton playing_badminton|打羽毛球|outdoor;
        play_table_tennis played_table_tennis playing_table_tennis|打乒乓球|outdoor;
        fly_a_kite flew_a_kite flying_a_kite|放风筝|outdoor;
        take_a_walk took_a_walk taking_a_walk|散步|outdoor;
        run ran running|跑步|outdoor;
        ride_a_bicycle rode_a_bicycle riding_a_bicycle|骑自行车|outdoor;
        take_photos took_photos taking_photos|拍照|outdoor sight;
        practice_tai_chi practiced_tai_chi practicing_tai_chi|练太极拳|outdoor""",
    "leisure": """
        chat chatted chatting|聊天|outdoor eatery;
        play_chess played_chess playing_chess|下棋|outdoor eatery;
        listen_to_music listened_to_music listening_to_music|听音乐|outdoor eatery;
        sing sang singing|唱歌|outdoor; dance danced dancing|跳舞|outdoor;
        play_the_guitar played_the_guitar playing_the_guitar|弹吉他|outdoor""",
    "meal_out": """
        have_lunch had_lunch having_lunch|吃午饭|eatery;
        have_dinner had_dinner having_dinner|吃晚饭|eatery""",
    "outing": """
        go_swimming went_swimming going_swimming|去游泳|;
        go_shopping went_shopping going_shopping|去购物|;
        go_hiking went_hiking going_hiking|去爬山|;
        go_fishing went_fishing going_fishing|去钓鱼|;
        go_skating went_skating going_skating|去滑冰|;
        go_camping went_camping going_camping|去露营|;
        go_skiing went_skiing going_skiing|去滑雪|""",
    "home": """
        cook_dinner cooked_dinner cooking_dinner|做晚饭|part_ae;
        wash_the_dishes washed_the_dishes washing_the_dishes|洗碗|part;
        wash_clothes washed_clothes washing_clothes|洗衣服|part;
        clean_the_room cleaned_the_room cleaning_the_room|打扫房间|part;
        watch_television watched_television watching_television|看电视|part;
        play_video_games played_video_games playing_video_games|玩电子游戏|part;
        do_homework did_homework doing_homework|做作业|part;
        water_the_flowers watered_the_flowers watering_the_flowers|浇花|part;
        play_the_piano played_the_piano playing_the_piano|弹钢琴|part;
        surf_the_internet surfed_the_internet surfing_the_internet|上网|part;
        read_the_newspaper read_the_newspaper reading_the_newspaper|看报纸|part;
        bake_a_cake baked_a_cake baking_a_cake|烤蛋糕|part;
        pack_the_luggage packed_the_luggage packing_the_luggage|收拾行李|part""",
    "favor": """
        cook_dinner cooked_dinner cooking_dinner|做晚饭|;
        wash_the_dishes washed_the_dishes washing_the_dishes|洗碗|;
        wash_clothes washed_clothes washing_clothes|洗衣服|;
        clean_the_room cleaned_the_room cleaning_the_room|打扫房间|;
        water_the_flowers watered_the_flowers watering_the_flowers|浇花|;
        walk_the_dog walked_the_dog walking_the_dog|遛狗|;
        bake_a_cake baked_a_cake baking_a_cake|烤蛋糕|;
        pack_the_luggage packed_the_luggage packing_the_luggage|收拾行李|""",
    "unwind": """
        take_a_shower took_a_shower taking_a_shower|洗澡|;
        walk_the_dog walked_the_dog walking_the_dog|遛狗|;
        do_exercise did_exercise doing_exercise|锻炼身体|;
        write_in_the_diary wrote_in_the_diary writing_in_the_diary|写日记|;
        listen_to_music listened_to_music listening_to_music|听音乐|;
        wash_the_dishes washed_the_dishes washing_the_dishes|洗碗|""",
    "daily": """
        get_up got_up getting_up|起床|part_m; take_a_shower took_a_shower taking_a_shower|洗澡|part;
        have_breakfast had_breakfast having_breakfast|吃早饭|part_m;
        go_to_bed went_to_bed going_to_bed|睡觉|part_e;
        go_to_work went_to_work going_to_work|去上班|part_m;
        go_home went_home going_home|回家|part_ae;
        walk_the_dog walked_the_dog walking_the_dog|遛狗|part;
        do_exercise did_exercise doing_exercise|锻炼身体|part;
        write_in_the_diary wrote_in_the_diary writing_in_the_diary|写日记|part_e""",
}

# Class -> entries "english[/comparative/superlative]|chinese[|attributive form]".
ADJECTIVES: dict[str, str] = {
    "thing_good": """
        beautiful|漂亮, useful|有用,
        practical|实用, special|特别, popular|受欢迎""",
    "thing_bad": """
        expensive|贵, heavy/heavier/heaviest|重, old/older/oldest|旧,
        dirty/dirtier/dirtiest|脏, big/bigger/biggest|大""",
    "thing_plain": """
        new/newer/newest|新, light/lighter/lightest|轻, small/smaller/smallest|小,
        cheap/cheaper/cheapest|便宜, ugly/uglier/ugliest|难看,
        clean/cleaner/cleanest|干净""",
    "read_adj": """
        interesting|有意思, boring|无聊, famous|有名,
        thick/thicker/thickest|厚, thin/thinner/thinnest|薄,
        difficult|难, easy/easier/easiest|容易, new/newer/newest|新,
        expensive|贵, cheap/cheaper/cheapest|便宜""",
    "wear_adj": """
        comfortable|舒服, warm/warmer/warmest|暖和, new/newer/newest|新,
        fashionable|时髦, beautiful|漂亮, cheap/cheaper/cheapest|便宜,
        expensive|贵|很贵的, light/lighter/lightest|轻|很轻的""",
    "look_adj": """
        fashionable|时髦, beautiful|漂亮, cheap/cheaper/cheapest|便宜, expensive|贵,
        special|特别, practical|实用, light/lighter/lightest|轻, comfortable|舒服""",
    "activity_adj": """
        interesting|有意思, boring|无聊, difficult|难, easy/easier/easiest|容易,
        healthy/healthier/healthiest|健康, relaxing|轻松""",
    "food_good": "delicious|好吃, fresh|新鲜, special|特别, popular|受欢迎, healthy|健康",
    "food_bad": "spicy|辣, salty|咸, sweet|甜, expensive|贵, sour|酸, bitter|苦",
    "place_adj": """
        quiet/quieter/quietest|安静, noisy/noisier/noisiest|吵,
        clean/cleaner/cleanest|干净, big/bigger/biggest|大,
        small/smaller/smallest|小, beautiful|漂亮, famous|有名,
        crowded|拥挤, modern|现代, popular|受欢迎""",
    "trait": """
        tall/taller/tallest|高, young/younger/youngest|年轻,
        smart/smarter/smartest|聪明, kind/kinder/kindest|善良,
        friendly/friendlier/friendliest|友好, hardworking|努力,
        polite|有礼貌, patient|有耐心,
        brave/braver/bravest|勇敢, careful|细心, funny/funnier/funniest|幽默,
        strong/stronger/strongest|强壮, honest|诚实, enthusiastic|热情,
        modest|谦虚, lively/livelier/liveliest|活泼, generous|大方""",
    "mood": """
        busy|忙, tired|累, happy|高兴, sad|难过, hungry|饿, angry|生气, nervous|紧张,
        worried|担心, sleepy|困, excited|激动""",
    "mood_bad": """
        busy|忙, tired|累, sad|难过, angry|生气, nervous|紧张, worried|担心, sleepy|困""",
    "mood_body": "tired|累, hungry|饿, thirsty|渴, sleepy|困, nervous|紧张, busy|忙",
    "mood_feeling": "happy|高兴, excited|激动, sad|难过, angry|生气, worried|担心",
    "temperature": """
        cold/colder/coldest|冷, hot/hotter/hottest|热, warm/warmer/warmest|暖和,
        cool/cooler/coolest|凉快""",
    "weather_adj": """
        cold/colder/coldest|冷, hot/hotter/hottest|热, warm/warmer/warmest|暖和,
        cool/cooler/coolest|凉快, humid/more humid/most humid|潮湿,
        dry/drier/driest|干燥, mild/milder/mildest|温和, pleasant|舒适""",
    "subject_adj": """
        difficult|难, easy/easier/easiest|容易, interesting|有意思,
        boring|无聊, important|重要, useful|有用""",
    "size": """
        big/bigger/biggest|大, small/smaller/smallest|小, cheap/cheaper/cheapest|便宜,
        long/longer/longest|长, short/shorter/shortest|短, thick/thicker/thickest|厚,
        thin/thinner/thinnest|薄""",
}

# Class -> entries "english|chinese[|class of a slot that depends on it]".
WORDS: dict[str, str] = {
    "color": """
        red|红色, blue|蓝色, green|绿色, black|黑色, white|白色, yellow|黄色, brown|棕色,
        grey|灰色, pink|粉色, purple|紫色""",
    "china_city": """
        Beijing|北京, Shanghai|上海, Guangzhou|广州, Hangzhou|杭州, Chengdu|成都, Xi'an|西安,
        Nanjing|南京, Hong Kong|香港, Qingdao|青岛, Suzhou|苏州, Kunming|昆明, Tianjin|天津,
        Wuhan|武汉, Shenzhen|深圳, Xiamen|厦门""",
    "world_city": """
        Tokyo|东京, London|伦敦, Paris|巴黎, New York|纽约, Rome|罗马,
        Berlin|柏林, Sydney|悉尼, Singapore|新加坡, Moscow|莫斯科, Bangkok|曼谷, Seoul|首尔,
        Madrid|马德里, Toronto|多伦多""",
    "country": """
        China|中国, Japan|日本, South Korea|韩国, France|法国, Germany|德国, Italy|意大利,
        Spain|西班牙, Russia|俄罗斯, Australia|澳大利亚, Canada|加拿大, Brazil|巴西, Thailand|泰国,
        Egypt|埃及, India|印度, Mexico|墨西哥""",
    "language": """
        Chinese|中文, English|英语, Japanese|日语, French|法语, German|德语, Spanish|西班牙语,
        Russian|俄语, Italian|意大利语, Korean|韩语, Arabic|阿拉伯语, Thai|泰语,
        Portuguese|葡萄牙语""",
    "subject": """
        math|数学, history|历史, geography|地理, physics|物理, chemistry|化学, biology|生物,
        music|音乐, law|法律, economics|经济学, literature|文学, philosophy|哲学, art|美术,
        psychology|心理学""",
    "transport": """
        train|火车|china_city, plane|飞机|city, coach|长途汽车|china_city,
        night train|夜车|china_city, high-speed train|高铁|china_city""",
    "city_transport": "bus|公共汽车, taxi|出租车, subway|地铁, tram|有轨电车",
    "road_transport": "bus|公共汽车, taxi|出租车, tram|有轨电车",
    "season": "spring|春天, summer|夏天, autumn|秋天, winter|冬天",
    "relative": "older brother|哥哥, younger brother|弟弟, older sister|姐姐, younger sister|妹妹",
    "clinic": "hospital|医院, clinic|诊所, pharmacy|药店",
    "weekly": "on weekends|周末, in spring|春天, in summer|夏天, in autumn|秋天, in winter|冬天",
    "body": """
        head|头, stomach|肚子, back|背, throat|嗓子, leg|腿, foot|脚, knee|膝盖, hand|手,
        shoulder|肩膀, ear|耳朵, neck|脖子, arm|胳膊, tooth|牙, finger|手指""",
    "illness": """
        a cold|感冒, a fever|发烧, a cough|咳嗽, an allergy|过敏, the flu|得流感""",
    "frequency": "usually|通常, always|总是, often|经常, sometimes|有时候",
    "speed": "faster|快, more slowly|慢",
    "skill": "better|好, worse|差, more seriously|认真",
    "level": "better|好, worse|差, more clearly|清楚, more naturally|自然",
    "clarity": "more clearly|清楚",
    "group": """
        our class|我们班, our company|我们公司, our family|我们家, our school|我们学校,
        our team|我们队, this office|这个办公室, this village|这个村子""",
    "meal": "breakfast|早饭|clock_morning, lunch|午饭|clock_noon, dinner|晚饭|clock_evening",
    "opening": "opens|开门, closes|关门",
    "main_meal": "lunch|午饭, dinner|晚饭",
    "facility": """
        gym|健身房, restaurant|饭馆, swimming pool|游泳池, coffee shop|咖啡馆, bar|酒吧,
        library|图书馆, pharmacy|药店, bank|银行, hair salon|理发店""",
    "spot": """
        on the table|桌子上, under the table|桌子下面, on the chair|椅子上, under the bed|床下面,
        on the bed|床上, on the sofa|沙发上, in the drawer|抽屉里, in the suitcase|行李箱里,
        in the backpack|背包里, in the box|盒子里, in the wardrobe|衣柜里, on the desk|书桌上,
        behind the door|门后面, behind the curtain|窗帘后面, next to the window|窗户旁边,
        on the bookshelf|书架上,
        next to the computer|电脑旁边, in the kitchen|厨房里, in the bathroom|浴室里,
        in the living room|客厅里, in the bedroom|卧室里, on the balcony|阳台上,
        in the car|车里""",
    "past_day": "yesterday|昨天, the day before yesterday|前天",
    "past_part": """
        yesterday morning|昨天早上, yesterday afternoon|昨天下午, last night|昨天晚上,
        this morning|今天早上""",
    "past_far": """
        last week|上个星期, last month|上个月, last year|去年, last weekend|上个周末,
        last summer|去年夏天, last winter|去年冬天""",
    "future_part": """
        tomorrow morning|明天早上, tomorrow afternoon|明天下午, tomorrow evening|明天晚上,
        tonight|今天晚上, this afternoon|今天下午""",
    "future_day": "tomorrow|明天, the day after tomorrow|后天",
    "future_week": "next week|下个星期, this weekend|这个周末",
    "future_far": """
        next month|下个月, next year|明年, next summer|明年夏天, next winter|明年冬天,
        next spring|明年春天""",
    "habit": """
        every day|每天, every morning|每天早上, every afternoon|每天下午, every evening|每天晚上,
        every week|每个星期, every weekend|每个周末""",
    "today_part": "today|今天, this morning|今天早上, this afternoon|今天下午",
    "today": """
        today|今天, this morning|今天早上, this afternoon|今天下午, tonight|今天晚上, now|现在""",
}

# Class -> entries "base past third|chinese" of weather events ("it ...").
WEATHER: str = """
    rain rained rains|下雨; snow snowed snows|下雪; be_windy was_windy is_windy|刮风;
    be_foggy was_foggy is_foggy|有雾; hail hailed hails|下冰雹"""

# Entries "english|chinese|gender".
NAMES: str = """
    Anna|安娜|f, Tom|汤姆|m, Mary|玛丽|f, David|大卫|m, Lucy|露西|f, Peter|彼得|m, Emma|艾玛|f,
    Jack|杰克|m, Linda|琳达|f, Mike|迈克|m, Sophia|索菲亚|f, Daniel|丹尼尔|m"""
TITLED: str = """
    Mr. Li|李先生|m, Mr. Wang|王先生|m, Mrs. Zhang|张太太|f, Miss Chen|陈小姐|f,
    Dr. Liu|刘医生|f, Professor Zhao|赵教授|m"""

# Class -> entries "english|chinese|gender (p: plural)".
KIN: dict[str, str] = {
    "peer_kin": """
        older brother|哥哥|m, younger brother|弟弟|m, older sister|姐姐|f, younger sister|妹妹|f""",
    "child_kin": "son|儿子|m, daughter|女儿|f",
    "other_kin": """
        mother|妈妈|f, father|爸爸|m, grandfather|爷爷|m, grandmother|奶奶|f, uncle|叔叔|m,
        aunt|阿姨|f, parents|父母|p""",
    "spouse": "wife|妻子|f, husband|丈夫|m",
    "mate": """
        friend|朋友|m, colleague|同事|f, classmate|同学|f, boss|老板|m, neighbor|邻居|f,
        roommate|室友|m""",
}
MONTHS: str = """
    January, February, March, April, May, June, July, August, September, October, November,
    December"""
WEEKDAYS: str = """
    Monday|一, Tuesday|二, Wednesday|三, Thursday|四, Friday|五, Saturday|六, Sunday|日"""
